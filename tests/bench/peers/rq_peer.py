"""rq, a process for each job as it does by default, and a JSON codec."""

import logging
from typing import Any

import program
import slots
from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer


def noop(number: int, payload: dict[str, str]) -> None:
    slots.from_environment().stamp(number)


def work(arguments: Any) -> None:
    logging.disable(logging.INFO)
    client = Redis.from_url(arguments.redis)
    queue = Queue("default", connection=client, serializer=JSONSerializer)
    Worker([queue], connection=client, serializer=JSONSerializer).work(logging_level="WARNING")


def produce(arguments: Any) -> program.Producer:
    client = Redis.from_url(arguments.redis)
    queue = Queue("default", connection=client, serializer=JSONSerializer)

    def one(number: int) -> None:
        queue.enqueue("rq_peer.noop", number, program.PAYLOAD)

    def many(numbers: Any) -> None:
        queue.enqueue_many(
            [Queue.prepare_data("rq_peer.noop", args=(n, program.PAYLOAD)) for n in numbers]
        )

    return program.Producer(one, many)


if __name__ == "__main__":
    program.main(work, produce)
