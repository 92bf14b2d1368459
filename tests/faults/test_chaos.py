"""Workers that die, freeze and stop, and a Redis that forgets, under a steady load.

The faults are drawn at random; the seed is printed, and SKILLFLEET_FAULT_SEED repeats a draw.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import asyncpg

from dispatcher import Dispatcher
from shared.states import TRANSITIONS, Status
from tests.conftest import SpawnWorker
from tests.factories import install, make_settings, redis_to
from tests.services import Room, keys_without_ttl
from tests.signals import until

SECONDS = float(os.environ.get("SKILLFLEET_FAULT_SECONDS", "20"))
PER_SECOND = 200
FAULT_EVERY_S = 1.5
WORKERS = 3
DRAIN_S = 90.0

VARIABLES = {
    "SKILLS_HANDLER_MODULES": "tests.faults.effects",
    "SKILLS_WORKER_QUEUES": "direct",
    "SKILLS_WORKER_LEASE_MS": "2000",
    "SKILLS_WORKER_SWEEP_MS": "200",
    "SKILLS_WORKER_GRACE_MS": "500",
}

MOVES = """
CREATE TABLE moves (id uuid, before text, after text, attempt integer);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves VALUES (NEW.id, OLD.status, NEW.status, NEW.attempt);
    RETURN NULL;
END $$;
CREATE TRIGGER moves AFTER UPDATE ON skill_executions FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.ended IS NOT NULL)
    EXECUTE FUNCTION note_move();
"""


async def test_nothing_is_lost_or_done_twice_whatever_dies(
    database_url: str, redis_url: str, spawn_worker: SpawnWorker, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SKILLFLEET_FAULT_SEED", random.randrange(1_000_000)))
    chance = random.Random(seed)  # no secret
    print(f"seed {seed}")
    log = tmp_path / "effects"

    async def start() -> Room:
        return await spawn_worker(**VARIABLES)

    async with (
        Dispatcher.open(make_settings(database_url, redis_url)) as dispatcher,
        redis_to(redis_url) as redis,
    ):
        await dispatcher.pool.execute(MOVES)
        workers = [await start() for _ in range(WORKERS)]
        for name in ("effect", "effect-once"):
            await install(dispatcher.pool, name, handler_code=name, max_retries=50)
        await dispatcher.registry.changed()
        done = asyncio.Event()
        draw = asyncio.create_task(faults(chance, workers, start, redis.flushdb, done))
        accepted = await load(dispatcher, chance, log)
        done.set()
        drawn = await draw
        print(f"{len(accepted)} executions, faults: {dict(drawn)}")

        async def drained() -> bool:
            return not await dispatcher.pool.fetchval(
                "SELECT count(*) FROM skill_executions WHERE ended IS NULL"
            )

        await until(drained, f"all have ended (seed {seed})", deadline_s=DRAIN_S)
        await judge(dispatcher.pool, accepted, log)

        async def forgotten() -> bool:
            return await keys_without_ttl(redis) == []

        await until(forgotten, "no key stays for ever", deadline_s=30)


async def load(dispatcher: Dispatcher, chance: random.Random, log: Path) -> dict[UUID, str]:
    """Submit at a steady rate; return which skill each accepted execution is of."""
    loop = asyncio.get_running_loop()
    accepted: dict[UUID, str] = {}
    began = loop.time()
    for number in range(int(SECONDS * PER_SECOND)):
        skill = chance.choice(("effect", "effect-once"))
        execution = await dispatcher.submit(
            skill,
            {"log": str(log), "seconds": chance.choice((0, 0, 0.01, 0.2))},
            api_key_id=f"owner-{number % 7}",
            priority=chance.choice(("high", "normal", "low")),
            wait_s=0,
        )
        accepted[execution.id] = skill
        await asyncio.sleep(max(0.0, began + number / PER_SECOND - loop.time()))
    return accepted


async def faults(
    chance: random.Random,
    workers: list[Room],
    start: Callable[[], Awaitable[Room]],
    flush: Callable[[], Awaitable[object]],
    done: asyncio.Event,
) -> Counter[str]:
    """Do one thing after the other to the workers and to Redis; put right what it did."""
    drawn: Counter[str] = Counter()
    while not done.is_set():
        kind = chance.choice(("kill", "freeze", "stop", "flush"))
        drawn[kind] += 1
        place = chance.randrange(len(workers))
        match kind:
            case "flush":
                await flush()
            case "freeze":
                os.kill(workers[place].process.pid, signal.SIGSTOP)
                await asyncio.sleep(chance.choice((0.5, 3.0)))
                os.kill(workers[place].process.pid, signal.SIGCONT)
            case _:
                how = signal.SIGKILL if kind == "kill" else signal.SIGTERM
                os.kill(workers[place].process.pid, how)
                workers[place] = await start()
        await asyncio.sleep(FAULT_EVERY_S * chance.random())
    return drawn


async def judge(pool: "asyncpg.Pool[asyncpg.Record]", accepted: dict[UUID, str], log: Path) -> None:
    """Hold the table, the log of effects and the moves against what was accepted."""
    rows = {
        row["id"]: row
        for row in await pool.fetch(
            "SELECT id, status, error_code, attempt, attempts FROM skill_executions"
        )
    }
    assert rows.keys() == accepted.keys()
    effects = Counter(UUID(line.split()[0]) for line in log.read_text().splitlines())
    for execution_id, row in rows.items():
        once = accepted[execution_id] == "effect-once"
        if row["status"] == "success":
            assert effects[execution_id] >= 1, f"{execution_id} had no effect"
        else:
            assert (once, row["error_code"]) == (True, "worker_lost"), dict(row)
        assert not once or effects[execution_id] <= 1, f"{execution_id} was done twice"
        assert effects[execution_id] <= row["attempt"]
        assert len(row["attempts"]) in (row["attempt"] - 1, row["attempt"])
    allowed = {(before, after) for before, ends in TRANSITIONS.items() for after in ends}
    for move in await pool.fetch("SELECT DISTINCT before, after FROM moves"):
        assert (Status(move["before"]), Status(move["after"])) in allowed, dict(move)
    ends = "SELECT id FROM moves WHERE after NOT IN ('pending', 'running') GROUP BY id"
    assert not await pool.fetch(f"{ends} HAVING count(*) <> 1")
