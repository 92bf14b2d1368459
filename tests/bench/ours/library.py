"""The product by its library: every execution committed three times."""

import argparse
from collections.abc import Sequence

from dispatcher import Dispatcher
from shared.settings import load
from tests.bench.peers import program

SKILL = "bench"


def work(_: argparse.Namespace) -> None:
    raise SystemExit("The workers are `python -m worker`")


async def produce(arguments: argparse.Namespace) -> program.Producer:
    settings = load(database={"url": arguments.postgres}, redis={"url": arguments.redis})
    opened = Dispatcher.open(settings)
    dispatcher = await opened.__aenter__()

    async def one(number: int) -> None:
        await dispatcher.submit(SKILL, {"number": number, **program.PAYLOAD}, wait_s=0)

    async def many(numbers: Sequence[int]) -> None:
        asked = [
            {"skill_name": SKILL, "input": {"number": number, **program.PAYLOAD}}
            for number in numbers
        ]
        await dispatcher.submit_many(asked)

    async def close() -> None:
        await opened.__aexit__(None, None, None)

    return program.Producer(one, many, close)


if __name__ == "__main__":
    program.main(work, produce)
