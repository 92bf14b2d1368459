import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dispatcher.cli.children import Child, ChildFailed
from dispatcher.cli.fleet import RESTARTS, Fleet
from tests.signals import until

LIVES = "import sys; print('up', flush=True); sys.stdin.read(); import signal; signal.pause()"
STUBBORN = (
    "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(console=Console(file=io.StringIO(), width=200), data_dir=tmp_path, lock=0)
    yield made
    for child in (*made.workers, *made.dispatchers):
        child.kill()


def child(tmp_path: Path, code: str, name: str = "worker 1", grace_s: float = 10.0) -> Child:
    made = Child(
        name=name,
        argv=[sys.executable, "-c", code],
        log=tmp_path / "logs" / f"{name}.log",
        grace_s=grace_s,
    )
    made.start()
    return made


async def up(made: Child) -> None:
    async def said() -> bool:
        return made.log.read_text().count("up\n") >= len(made.starts)

    await until(said, f"{made.name} runs")


def said(fleet: Fleet) -> str:
    assert isinstance(fleet.console.file, io.StringIO)
    return fleet.console.file.getvalue()


async def ended(made: Child) -> None:
    async def gone() -> bool:
        return made.exit_code() is not None

    await until(gone, f"{made.name} has ended")


async def test_a_room_that_is_lost_is_started_again_and_it_is_said(
    fleet: Fleet, tmp_path: Path
) -> None:
    made = child(tmp_path, LIVES)
    fleet.workers.append(made)
    await up(made)
    assert made.process is not None
    lost = made.process.pid
    os.kill(lost, signal.SIGKILL)
    await ended(made)
    fleet.keep(made)
    await up(made)
    assert made.process.pid != lost
    assert "worker 1 ended with signal SIGKILL. Starting it again" in said(fleet)


async def test_a_room_that_ends_again_and_again_stops_the_fleet_with_its_log(
    fleet: Fleet, tmp_path: Path
) -> None:
    made = child(tmp_path, "import sys; sys.exit('the reason')")
    for _ in range(RESTARTS):
        await ended(made)
        fleet.keep(made)
    await ended(made)
    with pytest.raises(ChildFailed, match=r"(?s)start `skillfleet up` again.*the reason"):
        fleet.keep(made)


async def test_a_service_that_is_lost_stops_all_and_says_how_to_go_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    made = child(tmp_path, "import sys; sys.exit('the reason')", "Valkey")
    fleet.backing = (made,)
    await ended(made)
    with pytest.raises(ChildFailed, match=r"(?s)Start `skillfleet up` again.*the reason"):
        fleet.watch()


async def test_workers_stop_before_the_dispatcher_and_a_stubborn_one_is_killed(
    fleet: Fleet, tmp_path: Path
) -> None:
    stubborn = child(tmp_path, STUBBORN, "worker 1", grace_s=0.2)
    front = child(tmp_path, LIVES, "dispatcher")
    fleet.workers.append(stubborn)
    fleet.dispatchers.append(front)
    await up(stubborn)
    await up(front)
    fleet.stop()
    assert stubborn.exit_code() == -signal.SIGKILL
    assert front.exit_code() == -signal.SIGTERM
    assert "worker 1 did not stop within" in said(fleet)


async def test_a_second_interruption_asks_a_room_again_instead_of_killing_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    # As a worker does: at the first signal it lets finish what runs, at the second it cuts it off.
    made = child(
        tmp_path,
        "import os, signal, sys\n"
        "def first(*_):\n"
        "    signal.signal(15, lambda *_: sys.exit(7))\n"
        "    os.kill(os.getppid(), signal.SIGUSR1)\n"
        "signal.signal(15, first); print('up', flush=True)\n"
        "while True: signal.pause()",
    )
    fleet.workers.append(made)
    await up(made)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        fleet.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert made.exit_code() == 7
    assert "what runs is cut off" in said(fleet)


async def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from dispatcher.cli.children import Child\n"
        f"c = Child(name='c', argv=[sys.executable, '-c', {LIVES!r}], log=Path({str(tmp_path)!r})"
        " / 'c.log'); c.start(); print(c.process.pid, flush=True); signal.pause()"
    )
    parent = child(tmp_path, code, "parent")

    async def written() -> int:
        text = parent.log.read_text().strip()
        return int(text) if text else 0

    orphan = await until(written, "the child runs")
    parent.kill()

    async def gone() -> bool:
        try:
            state = Path(f"/proc/{orphan}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"  # whoever inherited it may not have reaped it yet

    await until(gone, "the child has ended too")
