"""celery over Redis with a pool of threads, the fastest of its pools for small jobs."""

import os
from pathlib import Path
from typing import Any

import program
import slots
from celery import Celery

app = Celery("celery_peer", broker=os.environ["BENCH_REDIS"])
app.conf.worker_hijack_root_logger = False
app.conf.task_ignore_result = True
STAMPS = slots.from_environment()


@app.task(name="noop")
def noop(number: int, payload: dict[str, str]) -> None:
    STAMPS.stamp(number)


def work(arguments: Any) -> None:
    os.chdir(Path(__file__).parent)
    command = [program.beside("celery"), "-A", "celery_peer", "worker", "-P", "threads"]
    command += ["-c", str(min(arguments.slots, 16)), "-l", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "-n", f"worker{os.getpid()}@%h"]
    os.execv(command[0], command)  # noqa: S606  # its own command line is how it is run


def produce(_: Any) -> program.Producer:
    return program.Producer(lambda number: noop.delay(number, program.PAYLOAD) and None)


if __name__ == "__main__":
    program.main(work, produce)
