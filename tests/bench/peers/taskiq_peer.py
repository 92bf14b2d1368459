"""taskiq over Redis: a list, or with ``BENCH_STREAM`` a stream."""

import os
from pathlib import Path
from typing import Any

import program
import slots
from taskiq_redis import ListQueueBroker, RedisStreamBroker

URL = os.environ["BENCH_REDIS"]
broker = RedisStreamBroker(URL) if os.environ.get("BENCH_STREAM") else ListQueueBroker(URL)
STAMPS = slots.from_environment()


@broker.task(task_name="noop")
async def noop(number: int, payload: dict[str, str]) -> None:
    STAMPS.stamp(number)


def work(arguments: Any) -> None:
    os.chdir(Path(__file__).parent)
    command = [program.beside("taskiq"), "worker", "taskiq_peer:broker", "--workers", "1"]
    command += ["--max-async-tasks", str(arguments.slots), "--log-level", "WARNING"]
    os.execv(command[0], command)  # noqa: S606  # its own command line is how it is run


async def produce(_: Any) -> program.Producer:
    await broker.startup()

    async def one(number: int) -> None:
        await noop.kiq(number, program.PAYLOAD)

    return program.Producer(one, close=broker.shutdown)


if __name__ == "__main__":
    program.main(work, produce)
