"""procrastinate, a queue in Postgres."""

import os
from typing import Any

import procrastinate
import program
import slots

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"], max_size=10)
)
STAMPS = slots.from_environment()


@app.task(name="noop")
async def noop(number: int, payload: dict[str, str]) -> None:
    STAMPS.stamp(number)


async def schema() -> None:
    if not await app.check_connection_async():
        await app.schema_manager.apply_schema_async()


def work(arguments: Any) -> None:
    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=arguments.slots)

    program.loop()(run())


async def produce(_: Any) -> program.Producer:
    await app.open_async()

    async def one(number: int) -> None:
        await noop.defer_async(number=number, payload=program.PAYLOAD)

    async def many(numbers: Any) -> None:
        jobs = [{"number": n, "payload": program.PAYLOAD} for n in numbers]
        await noop.batch_defer_async(*jobs)

    return program.Producer(one, many, app.close_async)


async def prepare() -> None:
    async with app.open_async():
        await schema()


if __name__ == "__main__":
    if os.environ.get("BENCH_PREPARE"):
        program.loop()(prepare())
    else:
        program.main(work, produce)
