"""Several dispatcher processes on one port: all serve, none is missed, and they go together."""

import asyncio
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from dispatcher.processes import FLAG
from tests.conftest import SpawnDispatcher
from tests.flows.conftest import Desk, Gate, SpawnSpecimens
from tests.services import MANAGEMENT_TOKEN, Room
from tests.signals import until

ENOUGH = 3


def children(room: Room) -> set[int]:
    listed = Path(f"/proc/{room.pid}/task/{room.pid}/children").read_text(encoding="ascii")
    return set(map(int, listed.split()))


async def staffed(room: Room, count: int, *, without: frozenset[int] = frozenset()) -> set[int]:
    async def there() -> set[int]:
        found = children(room)
        return found if len(found) == count and not found & without else set()

    return await until(there, f"{count} children", deadline_s=40)


@asynccontextmanager
async def client(room: Room) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}
    async with httpx.AsyncClient(
        base_url=room.url, headers=headers, trust_env=False, timeout=30
    ) as opened:
        yield opened


async def asked(room: Room) -> int:
    """Ask once, on a connection of its own."""
    async with client(room) as http:
        return (await http.get("/api/skills/settings")).status_code


async def executed(pid: int) -> None:
    """Wait until a child runs its program: its parent stands still until then."""

    async def there() -> bool:
        return FLAG in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")

    await until(there, "the child runs its program")


async def logged(room: Room, *said: str) -> str:
    """Wait until the log holds each of these, as often as it is named."""

    async def there() -> str:
        text = room.logged()
        return text if all(text.count(one) >= n for one, n in Counter(said).items()) else ""

    return await until(there, f"the log says {said}", deadline_s=40)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_that_is_killed_is_replaced_while_the_others_serve(
    spawn_dispatcher: SpawnDispatcher,
) -> None:
    room = await spawn_dispatcher(SKILLS_HTTP_PROCESSES=str(ENOUGH))
    first = await staffed(room, ENOUGH)
    for pid in sorted(first)[: ENOUGH - 1]:
        os.kill(pid, signal.SIGKILL)
    # A connection that the dead one had taken is reset; a new one always finds somebody.
    answers = await asyncio.gather(*(asked(room) for _ in range(20)))
    assert Counter(answers) == {200: 20}
    killed = frozenset(sorted(first)[: ENOUGH - 1])
    assert len(await staffed(room, ENOUGH, without=killed)) == ENOUGH
    room.terminate()
    assert await asyncio.to_thread(room.wait) == 0


async def test_a_hangup_renews_them_without_a_refused_request(
    spawn_dispatcher: SpawnDispatcher,
) -> None:
    room = await spawn_dispatcher(SKILLS_HTTP_PROCESSES="2")
    before = frozenset(await staffed(room, 2))
    statuses: Counter[int] = Counter()
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            statuses[await asked(room)] += 1

    askers = [asyncio.create_task(ask()) for _ in range(4)]
    room.process.send_signal(signal.SIGHUP)
    after = await staffed(room, 2, without=before)
    over.set()
    await asyncio.gather(*askers)
    assert not after & before
    assert set(statuses) == {200}
    assert not any(alive(pid) for pid in before)


async def test_children_that_die_while_they_are_renewed_leave_no_more_than_there_were(
    spawn_dispatcher: SpawnDispatcher,
) -> None:
    room = await spawn_dispatcher(SKILLS_HTTP_PROCESSES="2")
    before = frozenset(await staffed(room, 2))
    room.process.send_signal(signal.SIGHUP)
    (successor,) = await staffed(room, 3) - before
    await executed(successor)
    os.kill(successor, signal.SIGSTOP)  # it is on the way for as long as this takes
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await logged(room, "dispatcher.child.lost")
    os.kill(successor, signal.SIGCONT)
    # One had its successor on the way, the other gets one; neither gets two.
    await logged(room, "dispatcher.renewed")
    await logged(room, *["Started server process"] * 4)
    assert len(children(room)) == 2
    assert room.logged().count("dispatcher.child.lost") == 1
    room.terminate()
    assert await asyncio.to_thread(room.wait) == 0


async def test_a_stop_answers_who_waits_and_leaves_nobody(
    spawn_dispatcher: SpawnDispatcher, desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens()
    room = await spawn_dispatcher(SKILLS_HTTP_PROCESSES="2")
    pids = await staffed(room, 2)
    async with client(room) as http:
        body = {"skillName": "gate", "input": gate.input}
        waiting = asyncio.create_task(http.post("/api/skills/executions", json=body))
        await gate.noted("start 1")
        room.terminate()
        answer = await waiting
        assert answer.status_code in (200, 202), answer.text
        assert await asyncio.to_thread(room.wait) == 0
    assert not any(alive(pid) for pid in pids)


async def test_no_child_outlives_a_parent_that_was_killed(
    spawn_dispatcher: SpawnDispatcher,
) -> None:
    room = await spawn_dispatcher(SKILLS_HTTP_PROCESSES="2")
    pids = await staffed(room, 2)
    room.kill()

    async def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    await until(gone, "the children leave", deadline_s=40)


@pytest.mark.parametrize(
    ("variables", "status", "said"),
    [
        ({"SKILLS_DATABASE_URL": "postgresql://127.0.0.1:1/none"}, 4, "Postgres can't be reached"),
        ({"SKILLS_MANAGEMENT_TOKEN": "two words"}, 2, "SKILLS_MANAGEMENT_TOKEN"),
        ({"SKILLS_HTTP_PROCESSES": "0"}, 2, "SKILLS_HTTP_PROCESSES"),
    ],
)
async def test_what_keeps_the_first_from_starting_ends_them_all_with_its_words(
    spawn_dispatcher: SpawnDispatcher, variables: dict[str, str], status: int, said: str
) -> None:
    room = await spawn_dispatcher(ready=False, **{"SKILLS_HTTP_PROCESSES": "2", **variables})
    assert await asyncio.to_thread(room.wait) == status
    assert said in room.logged()


async def test_a_first_child_that_is_killed_ends_the_parent_as_shells_count_it(
    spawn_dispatcher: SpawnDispatcher,
) -> None:
    room = await spawn_dispatcher(ready=False, SKILLS_HTTP_PROCESSES="2")
    os.kill(min(await staffed(room, 2)), signal.SIGKILL)
    assert await asyncio.to_thread(room.wait) == 128 + signal.SIGKILL
    assert "dispatcher.child.killed" in room.logged()


async def test_a_port_in_use_is_one_clear_error(spawn_dispatcher: SpawnDispatcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        room = await spawn_dispatcher(ready=False, SKILLS_HTTP_PROCESSES="2", SKILLS_HTTP_PORT=port)
        assert await asyncio.to_thread(room.wait) == 4
    assert room.logged().count(f"Can't listen on 127.0.0.1 port {port}") == 1


async def test_port_0_is_one_port_for_all(spawn_dispatcher: SpawnDispatcher) -> None:
    room = await spawn_dispatcher(ready=False, SKILLS_HTTP_PROCESSES="2", SKILLS_HTTP_PORT="0")
    text = await logged(room, *["Started server process"] * 2)
    (room.url,) = set(re.findall(r"http://127\.0\.0\.1:\d+", text))
    assert {await asked(room) for _ in range(4)} == {200}
