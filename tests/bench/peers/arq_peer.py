"""arq as it comes, with a JSON codec; with ``BENCH_DURABLE`` three autocommits an execution."""

import os
from typing import Any

import asyncpg
import orjson
import program
import slots
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

DURABLE = bool(os.environ.get("BENCH_DURABLE"))
TABLE = """
CREATE TABLE IF NOT EXISTS bench_arq (
    id integer PRIMARY KEY, status text, input text,
    created_at timestamptz DEFAULT clock_timestamp(), started_at timestamptz,
    finished_at timestamptz)
"""


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=repr)


CODEC = {"job_serializer": dumps, "job_deserializer": orjson.loads}


async def noop(context: dict[str, Any], number: int, payload: dict[str, str]) -> None:
    if not DURABLE:
        context["stamps"].stamp(number)
        return
    pool = context["pool"]
    await pool.execute(
        "UPDATE bench_arq SET status = 'running', started_at = clock_timestamp() WHERE id = $1",
        number,
    )
    await pool.execute(
        "UPDATE bench_arq SET status = 'success', finished_at = clock_timestamp() WHERE id = $1",
        number,
    )
    context["stamps"].stamp(number)


def work(arguments: Any) -> None:
    async def begin(context: dict[str, Any]) -> None:
        context["stamps"] = slots.from_environment()
        if DURABLE:
            context["pool"] = await asyncpg.create_pool(arguments.postgres, max_size=10)

    Worker(
        functions=[func(noop, name="noop")],
        redis_settings=RedisSettings.from_dsn(arguments.redis),
        on_startup=begin,
        max_jobs=arguments.slots,
        poll_delay=float(os.environ.get("BENCH_POLL", "0.5")),
        keep_result=0,
        **CODEC,
    ).run()


async def produce(arguments: Any) -> program.Producer:
    pool = await create_pool(RedisSettings.from_dsn(arguments.redis), **CODEC)
    rows = None
    if DURABLE:
        rows = await asyncpg.create_pool(arguments.postgres, max_size=10)
        await rows.execute(TABLE)
        await rows.execute("TRUNCATE bench_arq")

    async def one(number: int) -> None:
        if rows is not None:
            await rows.execute(
                "INSERT INTO bench_arq (id, status, input) VALUES ($1, 'pending', '{}')", number
            )
        await pool.enqueue_job("noop", number, program.PAYLOAD)

    return program.Producer(one, close=pool.aclose)


if __name__ == "__main__":
    import asyncio

    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    program.main(work, produce)
