"""Several dispatcher processes on one port: all serve, none is missed, and they go together."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

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
