"""streaq."""

import json
import os
from typing import Any

import program
import slots
from streaq import Worker

worker = Worker(
    redis_url=os.environ["BENCH_REDIS"],
    concurrency=int(os.environ["BENCH_SLOTS"]),
    serializer=json.dumps,
    deserializer=json.loads,
    anyio_kwargs={"use_uvloop": True},
)
STAMPS = slots.from_environment()


@worker.task
async def noop(number: int, payload: dict[str, str]) -> None:
    STAMPS.stamp(number)


def work(_: Any) -> None:
    worker.run_sync()


async def produce(_: Any) -> program.Producer:
    await worker.__aenter__()

    async def one(number: int) -> None:
        await noop.enqueue(number, program.PAYLOAD)

    async def many(numbers: Any) -> None:
        await worker.enqueue_many([noop.enqueue(n, program.PAYLOAD) for n in numbers])

    return program.Producer(one, many)


if __name__ == "__main__":
    program.main(work, produce)
