"""A rollout: every dispatcher and worker restarted, one after the other, while a load runs."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from uuid import UUID

import httpx

from shared.states import Status
from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.flows.conftest import QUICK, Desk
from tests.services import MANAGEMENT_TOKEN, Room

CALLERS = 12
PATH = "/api/skills/executions"
VARIABLES = {
    **QUICK,
    "SKILLS_HANDLER_MODULES": "tests.faults.effects",
    "SKILLS_WORKER_GRACE_MS": "10000",
}


class Callers:
    """Call and wait for the result, again and again; a connection that broke is made anew."""

    def __init__(self, rooms: list[Room], log: Path) -> None:
        self.rooms = rooms
        self.log = log
        self.over = asyncio.Event()
        self.ended: dict[UUID, str] = {}
        self.answers: Counter[int] = Counter()
        self.broken = 0

    async def call(self, caller: int) -> None:
        """Be one caller until it is over."""
        chance, number = random.Random(caller), 0
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}, trust_env=False, timeout=60
        ) as http:
            while not self.over.is_set():
                number += 1
                skill = chance.choice(("effect", "effect-once"))
                body = {"skillName": skill, "input": {"log": str(self.log), "seconds": 0.02}}
                key = {"Idempotency-Key": f"{caller}-{number}"}
                while True:
                    try:
                        url = f"{chance.choice(self.rooms).url}{PATH}"
                        answer = await http.post(url, json=body, headers=key)
                        break
                    except httpx.TransportError:
                        self.broken += 1  # asked again under its key
                        await asyncio.sleep(0.05)
                self.answers[answer.status_code] += 1
                found = answer.json()["execution"]
                self.ended[UUID(found["id"])] = found["status"]


async def test_a_rollout_under_load_fails_no_request_and_does_nothing_twice(
    desk: Desk, spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker, tmp_path: Path
) -> None:
    log = tmp_path / "effects"
    dispatchers = [await spawn_dispatcher(**VARIABLES) for _ in range(2)]
    workers = [await spawn_worker(**VARIABLES) for _ in range(2)]
    for name in ("effect", "effect-once"):
        await desk.install(name, max_retries=20)
    callers = Callers(dispatchers, log)
    calling = [asyncio.create_task(callers.call(number)) for number in range(CALLERS)]
    for rooms, spawn in ((workers, spawn_worker), (dispatchers, spawn_dispatcher)):
        for place, old in enumerate([*rooms]):
            rooms[place] = await spawn(**VARIABLES)  # the next one is there before it goes
            old.terminate()
            assert await asyncio.to_thread(old.wait) == 0
    callers.over.set()
    await asyncio.gather(*calling)
    assert set(callers.answers) == {200}, f"{callers.answers}, {callers.broken} broken connections"
    assert set(callers.ended.values()) == {Status.SUCCESS}
    assert await desk.dispatcher.count() == len(callers.ended), "none but those is there"
    effects = Counter(UUID(line.split()[0]) for line in log.read_text().splitlines())
    assert effects.keys() == callers.ended.keys()
    rows = await desk.dispatcher.pool.fetch("SELECT id, skill_name, attempt FROM skill_executions")
    for row in rows:
        if row["skill_name"] == "effect-once":
            assert effects[row["id"]] == 1
        assert effects[row["id"]] <= row["attempt"]
