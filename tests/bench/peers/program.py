"""What every program under measurement does: work, or put jobs in one of several ways.

Standard library only. A producer prints one JSON object: seconds it took, CPU seconds it used, and
for ``idle`` the moment of each call (CLOCK_MONOTONIC, seconds).
"""

import argparse
import asyncio
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

GAP_S = 0.02
"""Between two jobs of an idle queue."""

BATCH = 500
PAYLOAD = {"text": "x" * 64}


class Producer(NamedTuple):
    """How jobs are put: one, and where the queue has it, many at once."""

    one: Callable[[int], Any]
    many: Callable[[Sequence[int]], Any] | None = None
    close: Callable[[], Any] | None = None


def main(
    work: Callable[[argparse.Namespace], Any],
    produce: Callable[[argparse.Namespace], Any],
    run: Callable[[Any], Any] | None = None,
) -> None:
    """Read the command line and do as it says; ``run`` runs a coroutine on the peer's loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["worker", "producer"])
    parser.add_argument("--redis", required=True)
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--slots", type=int, default=100, help="jobs that a worker runs at once")
    parser.add_argument("--way", choices=["one", "many", "batch", "idle"], default="one")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--spare", type=int, default=0, help="the job of the first, warm call")
    parser.add_argument("--flight", type=int, default=64, help="calls under way, for `many`")
    arguments = parser.parse_args()
    if arguments.role == "worker":
        work(arguments)
        return
    run = run or loop()
    print(json.dumps(run(produced(arguments, produce))), flush=True)


def loop() -> Callable[[Any], Any]:
    """Return what runs a coroutine on the fastest loop there is here."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def produced(
    arguments: argparse.Namespace, produce: Callable[[argparse.Namespace], Any]
) -> dict[str, Any]:
    """Put the jobs and return what it took."""
    producer: Producer = await settled(produce(arguments))
    await settled(producer.one(arguments.spare))  # the first call connects; its job is one more
    calls: list[float] = []
    cpu, began = time.process_time(), time.monotonic()
    match arguments.way:
        case "one":
            for number in range(arguments.count):
                await settled(producer.one(number))
        case "many":
            await flights(producer.one, arguments.count, arguments.flight)
        case "batch":
            assert producer.many is not None
            for first in range(0, arguments.count, BATCH):
                await settled(producer.many(range(first, min(first + BATCH, arguments.count))))
        case "idle":
            for number in range(arguments.count):
                calls.append(time.monotonic())
                await settled(producer.one(number))
                await asyncio.sleep(GAP_S)
    took = time.monotonic() - began
    used = time.process_time() - cpu
    if producer.close is not None:
        await settled(producer.close())
    return {"began": began, "seconds": took, "cpu": used, "calls": calls}


async def flights(one: Callable[[int], Any], count: int, flight: int) -> None:
    """Keep so many calls under way."""
    numbers = iter(range(count))

    async def fly() -> None:
        for number in numbers:
            await settled(one(number))

    await asyncio.gather(*(fly() for _ in range(flight)))


async def settled(value: Awaitable[Any] | Any) -> Any:
    """Return a value, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value


def beside(name: str) -> str:
    """Return a program that came with this interpreter."""
    from pathlib import Path

    return str(Path(sys.executable).with_name(name))
