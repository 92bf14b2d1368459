"""What is measured: each peer and each way into the product, and how their programs start."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class System:
    """A queue under measurement.

    ``program`` is a script of ``peers`` run by the environment ``peer``, or a module of ours.
    ``many`` is the number of jobs of a fast measurement; ``ways`` what its producer can do.
    """

    name: str
    program: str
    peer: str | None = None
    many: int = 10_000
    ways: tuple[str, ...] = ("one", "many")
    variables: Mapping[str, str] = field(default_factory=dict)
    durable: bool = False
    dispatcher: bool = False
    fast: str = "many"
    slots: int = 100
    prepare: bool = False


SYSTEMS = (
    System("arq", "arq_peer.py", "arq", many=2000),
    System("arq poll 10 ms", "arq_peer.py", "arq", variables={"BENCH_POLL": "0.01"}),
    System(
        "arq poll 10 ms, 3 commits", "arq_peer.py", "arq", many=5000,
        variables={"BENCH_POLL": "0.01", "BENCH_DURABLE": "1"},
    ),
    System("saq", "saq_peer.py", "saq"),
    System("taskiq list", "taskiq_peer.py", "taskiq"),
    System("taskiq stream", "taskiq_peer.py", "taskiq", variables={"BENCH_STREAM": "1"}),
    System("streaq", "streaq_peer.py", "streaq", ways=("one", "many", "batch"), fast="batch"),
    System("rq", "rq_peer.py", "rq", many=500, ways=("one", "batch"), fast="batch"),
    System("celery", "celery_peer.py", "celery", many=2000, ways=("one",), fast="one"),
    System(
        "procrastinate", "procrastinate_peer.py", "procrastinate", many=2000,
        ways=("one", "many", "batch"), fast="batch", prepare=True,
    ),
    System(
        "skillfleet, queue alone", "tests.bench.ours.bare", many=20_000,
        ways=("one", "many", "batch"), fast="batch", slots=300,
    ),
    System(
        "skillfleet, library", "tests.bench.ours.library", many=20_000,
        ways=("one", "many", "batch"), fast="batch", durable=True, slots=300,
    ),
    System(
        "skillfleet, REST", "tests.bench.ours.rest", durable=True, dispatcher=True, slots=300,
        ways=("one", "many", "batch"),
    ),
    System(
        "skillfleet, REST batches", "tests.bench.ours.rest", many=20_000, durable=True,
        dispatcher=True, slots=300, ways=("batch",), fast="batch",
    ),
)  # fmt: skip

OURS = tuple(system.name for system in SYSTEMS if system.peer is None)
PEERS = tuple(system.name for system in SYSTEMS if system.peer is not None)
BARE, LIBRARY, REST, BATCHES = OURS
