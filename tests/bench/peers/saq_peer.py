"""saq over Redis."""

from typing import Any

import orjson
import program
import slots
from saq import Queue, Worker


def queue(arguments: Any) -> Queue:
    return Queue.from_url(arguments.redis, dump=orjson.dumps, load=orjson.loads)


async def noop(context: Any, *, number: int, payload: dict[str, str]) -> None:
    STAMPS.stamp(number)


def work(arguments: Any) -> None:
    async def run() -> None:
        made = queue(arguments)
        await made.connect()
        await Worker(made, functions=[("noop", noop)], concurrency=arguments.slots).start()

    program.loop()(run())


async def produce(arguments: Any) -> program.Producer:
    made = queue(arguments)
    await made.connect()

    async def one(number: int) -> None:
        await made.enqueue("noop", number=number, payload=program.PAYLOAD)

    return program.Producer(one, close=made.disconnect)


if __name__ == "__main__":
    STAMPS = slots.from_environment()
    program.main(work, produce)
