import asyncpg

from shared import presence
from shared.presence import Presence


def worker(**changes: object) -> Presence:
    fields: dict[str, object] = {
        "id": "w",
        "host": "h",
        "pid": 1,
        "queues": ("direct",),
        "handlers": ("a", "b"),
        "slots": 4,
        "running": 0,
        "sandbox": {"engine": "ready"},
        "lease_ms": 10_000,
        "rates": {"direct": 1.5},
        "consuming": True,
    }
    return Presence(**{**fields, **changes})  # type: ignore[arg-type]  # the fields are right


async def test_a_worker_lives_while_it_beats(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    await presence.beat(pool, worker())
    (first,) = await presence.live(pool)
    assert dict(first) == {
        "id": "w",
        "queues": ["direct"],
        "handlers": ["a", "b"],
        "sandbox": {"engine": "ready"},
        "slots": 4,
        "rates": {"direct": 1.5},
    }
    await pool.execute("UPDATE workers SET heartbeat_at = heartbeat_at - interval '1 minute'")
    assert await presence.live(pool) == []
    await presence.beat(pool, worker(id="patient", lease_ms=3_600_000))
    await pool.execute("UPDATE workers SET heartbeat_at = heartbeat_at - interval '1 minute'")
    assert [row["id"] for row in await presence.live(pool)] == ["patient"], "by its own lease"
    await pool.execute("DELETE FROM workers WHERE id = 'patient'")
    await presence.beat(pool, worker(running=3, sandbox={"engine": "absent"}))
    assert [row["sandbox"] for row in await presence.live(pool)] == [{"engine": "absent"}]
    assert await pool.fetchval("SELECT running FROM workers") == 3


async def test_a_worker_that_left_stays_gone_also_when_a_late_beat_arrives(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await presence.beat(pool, worker())
    await presence.leave(pool, "w")
    await presence.beat(pool, worker())
    assert await presence.live(pool) == []


async def test_only_the_long_gone_are_forgotten(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    for name in ("old", "new"):
        await presence.beat(pool, worker(id=name))
    await pool.execute(
        "UPDATE workers SET heartbeat_at = heartbeat_at - interval '25 hours' WHERE id = 'old'"
    )
    await presence.forget(pool)
    assert [row["id"] for row in await presence.live(pool)] == ["new"]
