"""The queue alone, without Postgres: what the durability of the product costs beside it."""

import argparse
from collections.abc import Sequence
from uuid import UUID, uuid4

from shared.queue import Entry, Queue
from shared.redis import connect
from shared.settings import load
from tests.bench.peers import program, slots
from worker.loop import QueueWorker
from worker.ticket import Ticket, Verdict, Work

QUEUE = "direct"


def numbered(number: int) -> Entry:
    """Return an entry whose execution's id is its number."""
    return Entry(UUID(int=number + 1), 0, QUEUE, "normal", owner="bench")


def work(arguments: argparse.Namespace) -> None:
    async def run() -> None:
        stamps = slots.from_environment()

        async def execute(execution_id: UUID) -> UUID:
            stamps.stamp(execution_id.int - 1)
            return execution_id

        async def claim(tickets: Sequence[Ticket]) -> list[Work | Verdict]:
            return [execute(ticket.execution_id) for ticket in tickets]

        client = connect(load(redis={"url": arguments.redis}))
        worker_id = f"bench-{uuid4()}"
        await QueueWorker(client, QUEUE, arguments.slots, 0.5, claim, worker_id=worker_id).main()

    program.loop()(run())


async def produce(arguments: argparse.Namespace) -> program.Producer:
    client = connect(load(redis={"url": arguments.redis}))
    queue = Queue(client)

    async def one(number: int) -> None:
        await queue.put([numbered(number)])

    async def many(numbers: Sequence[int]) -> None:
        await queue.put([numbered(number) for number in numbers])

    return program.Producer(one, many, client.aclose)


if __name__ == "__main__":
    program.main(work, produce)
