"""What has a limit: no more run, the others wait beside the queue, and nothing is lost there."""

from collections.abc import Mapping, Sequence

import pytest
from redis.asyncio import Redis

from shared import keys, live, pauses
from shared.gates import Admission, Gates, Limit
from shared.queue import Entry, Queue
from shared.redis import parked_key, queue_key, running_key
from shared.states import Status
from tests.factories import has_status, serving, submit
from tests.services import keys_without_ttl
from tests.signals import until
from tests.worker.pulling import Desk, drained, entry, pulling
from worker import reaper
from worker.lease import Leases
from worker.room import Room
from worker.ticket import Ticket

OWNER = "owner:o"


class Bounds:
    """The limits in force, by owner; None is for all."""

    def __init__(self, **owners: int) -> None:
        self.owners = owners
        self.all: int | None = None

    async def __call__(self, tickets: Sequence[Ticket]) -> Mapping[bytes, tuple[Limit, ...]]:
        found = {}
        for ticket in tickets:
            gates = [Limit("all", self.all)] if self.all else []
            if ticket.owner in self.owners:
                gates.append(Limit(f"owner:{ticket.owner}", self.owners[ticket.owner]))
            found[ticket.entry_id] = tuple(gates)
        return {entry_id: gates for entry_id, gates in found.items() if gates}


async def parked(redis: Redis) -> int:
    return int(await redis.hlen(parked_key("direct")))  # type: ignore[misc]


async def parks(redis: Redis, count: int) -> None:
    async def there() -> bool:
        return await parked(redis) == count

    await until(there, f"{count} wait at a limit")


async def test_no_more_run_than_may_and_all_come_to_their_turn(redis: Redis, desk: Desk) -> None:
    entries = [entry(owner="o") for _ in range(20)]
    desk.open.clear()
    async with pulling(redis, desk, slots=10, limits=Bounds(o=2)):
        await Queue(redis).put(entries)
        await parks(redis, 18)
        assert await Queue(redis).missing(entries) == []
        assert await Queue(redis).put(entries) == 0, "what waits at a limit is not put again"
        assert await keys_without_ttl(redis) == [queue_key("direct")]
        desk.open.set()
        await desk.has(*(one.execution_id for one in entries))
        await drained(redis)
    assert desk.peak == 2
    turns = [one.execution_id for one in entries]
    assert all(abs(turns.index(i) - n) < 5 for n, i in enumerate(desk.arrived)), "each in its turn"
    assert await redis.zcard(running_key(OWNER)) == await parked(redis) == 0


async def test_what_waits_at_a_limit_is_not_in_the_way_of_others(redis: Redis, desk: Desk) -> None:
    bounds, other = Bounds(o=1), entry(owner="other")
    desk.open.clear()
    async with pulling(redis, desk, slots=50, limits=bounds):
        await Queue(redis).put([entry(owner="o") for _ in range(2000)])
        await parks(redis, 1999)
        await Queue(redis).put([other])
        await desk.has(other.execution_id)
    assert len(desk.arrived) == 2


async def test_an_entry_counts_at_every_gate_it_passed_and_at_none_where_it_waits(
    redis: Redis, desk: Desk
) -> None:
    bounds = Bounds(o=1)
    bounds.all = 3
    desk.open.clear()
    async with pulling(redis, desk, slots=9, limits=bounds):
        await Queue(redis).put([entry(owner="o") for _ in range(3)])
        await parks(redis, 2)
        assert await redis.zcard(running_key("all")) == 1, "what waits for its owner runs nowhere"
        await Queue(redis).put([entry(owner=f"x{n}") for n in range(3)])
        await parks(redis, 3)
        assert await redis.zcard(running_key("all")) == 3
        assert sorted(await Gates(redis).crowded("direct")) == ["all", OWNER]
        desk.open.set()
        await drained(redis)
    assert desk.peak == 3
    assert len(desk.arrived) == 6
    assert await redis.zcard(running_key("all")) == 0


async def test_what_is_withdrawn_waits_at_no_limit_any_more(redis: Redis, desk: Desk) -> None:
    queue, entries = Queue(redis), [entry(owner="o") for _ in range(4)]
    desk.open.clear()
    async with pulling(redis, desk, slots=9, limits=Bounds(o=1)):
        await queue.put(entries)
        await parks(redis, 3)
        waiting = [one for one in entries if one.execution_id not in desk.arrived]
        await queue.withdraw(waiting)
        assert await queue.length("direct") == 1
        desk.open.set()
        await drained(redis)
    assert len(desk.arrived) == 1


async def test_a_limit_that_is_raised_lets_them_in_by_the_next_look(
    redis: Redis, desk: Desk
) -> None:
    bounds = Bounds(o=1)
    desk.open.clear()
    async with pulling(redis, desk, slots=9, limits=bounds):
        await Queue(redis).put([entry(owner="o") for _ in range(5)])
        await parks(redis, 4)
        assert await Gates(redis).mend("direct", {OWNER: 1}) == 0
        bounds.owners["o"] = 3
        assert await Gates(redis).mend("direct", {OWNER: 3}) == 2
        await parks(redis, 2)
        bounds.owners.clear()
        assert await Gates(redis).mend("direct", {OWNER: None}) == 2
        await parks(redis, 0)
        await desk.has(*desk.arrived[:5])
        assert await Gates(redis).mend("direct", {OWNER: None}) == 0
        assert await Gates(redis).crowded("direct") == []


async def test_the_places_of_a_worker_that_died_come_free_with_its_lease(
    redis: Redis, desk: Desk
) -> None:
    first, second = entry(owner="o"), entry(owner="o")
    await Queue(redis).put([first])
    dead = Leases(redis, "direct", "dead", 1.0)
    (taken,) = (await dead.cycle(1, [], "")).entries
    limit = (Limit(OWNER, 1),)
    admission = [Admission(taken.id, taken.turn, limit)]
    assert await Gates(redis).admit("direct", admission, "dead", 1.0) == {taken.id}
    async with pulling(redis, desk, poll_s=0.05, limits=Bounds(o=1)):
        await Queue(redis).put([second])
        await parks(redis, 1)

        async def let_in() -> bool:
            return await Gates(redis).mend("direct", {OWNER: 1}) > 0 or bool(desk.arrived)

        await until(let_in, "the place comes free")
        await desk.has(first.execution_id, second.execution_id)
        await drained(redis)


async def test_what_runs_counts_again_after_redis_was_emptied(redis: Redis, desk: Desk) -> None:
    desk.open.clear()
    async with pulling(redis, desk, lease_s=0.5, limits=Bounds(o=1)):
        running, waiting = entry(owner="o"), entry(owner="o")
        await Queue(redis).put([running])
        await desk.has(running.execution_id)
        await redis.flushdb()

        async def counted() -> bool:
            return bool(await redis.zscore(running_key(OWNER), running.id))

        await until(counted, "it counts again")
        await Queue(redis).put([waiting])
        await parks(redis, 1)


async def test_an_entry_whose_claim_fails_gives_its_place_back(redis: Redis, desk: Desk) -> None:
    desk.answer = False  # passed on again and again, until somebody takes it
    put = entry(owner="o")
    async with pulling(redis, desk, limits=Bounds(o=1)):
        await Queue(redis).put([put])
        await until_arrived(desk, 3)
        desk.answer = True
        await drained(redis)
        assert await redis.zcard(running_key(OWNER)) == 0


async def until_arrived(desk: Desk, count: int) -> None:
    async def there() -> bool:
        return len(desk.arrived) >= count

    await until(there, f"{count} arrive")


async def test_whatever_stands_under_the_names_of_gates_goes(redis: Redis, desk: Desk) -> None:
    for key in (running_key(OWNER), parked_key("direct"), f"{parked_key('direct')}:{OWNER}"):
        await redis.set(key, "not ours")
    await redis.set(f"{parked_key('direct')}:gates", "not ours")
    async with pulling(redis, desk, slots=4, limits=Bounds(o=1)):
        entries = [entry(owner="o") for _ in range(6)]
        await Queue(redis).put(entries)
        await desk.has(*(one.execution_id for one in entries))
    assert desk.peak == 1
    await redis.set(f"{parked_key('direct')}:gates", "not ours")
    assert await Gates(redis).crowded("direct") == []
    assert not await redis.exists(f"{parked_key('direct')}:gates")


# --- with rows, settings and keys ---------------------------------------------------------------


async def ends(room: Room, ids: Sequence[object]) -> None:
    for execution_id in ids:
        await until(
            lambda i=execution_id: has_status(room.pool, i, Status.SUCCESS),  # type: ignore[misc]
            "it ends",
        )


@pytest.mark.parametrize("kind", ["fleet", "owner"])
async def test_a_limit_is_in_force_at_once_and_lifted_at_once(
    room: Room, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "UNHEARD_S", 0.0)
    key, _ = await keys.create(room.pool, "k", ["execute:skills"], key_id="key-1")

    async def bound(limit: int | None) -> None:
        if kind == "fleet":
            await live.put(room.pool, {"maxRunning": limit}, "test")
        else:
            await keys.change(room.pool, key.id, {"concurrency_limit": limit}, "test")
        await room.registry.changed()

    await bound(1)
    handler = {"handler": "sleeper", "input": '{"s": 0.05}'}
    ids = [await submit(room.executions, api_key_id=key.id, **handler) for _ in range(6)]
    async with serving(room, slots=6):
        await room.queue.put([Entry(i, 0, "direct", "normal", owner=key.id) for i in ids])
        await ends(room, ids)
        overlaps = await room.pool.fetchval(
            "SELECT count(*) FROM skill_executions a JOIN skill_executions b ON a.id < b.id "
            "AND a.started_at < b.finished_at AND b.started_at < a.finished_at"
        )
        assert overlaps == 0, "one at a time"
        more = [await submit(room.executions, api_key_id=key.id, **handler) for _ in range(6)]
        await room.queue.put([Entry(i, 0, "direct", "normal", owner=key.id) for i in more])
        await bound(None)
        await reaper.mend(room)
        await ends(room, more)


async def test_a_pause_and_a_limit_together_lose_nothing(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "UNHEARD_S", 0.0)
    await live.put(room.pool, {"maxRunning": 2}, "test")
    await room.registry.changed()
    ids = [await submit(room.executions, api_key_id="key-1") for _ in range(12)]
    async with serving(room, slots=6):
        await pauses.pause(room.pool, "owner", "key-1", "test")
        await room.registry.changed()
        await room.queue.put([Entry(i, 0, "direct", "normal", owner="key-1") for i in ids])
        await drained_of(room.redis)
        await pauses.resume(room.pool, "owner", "key-1", "test")
        await room.registry.changed()
        await reaper.sweep(room)
        await ends(room, ids)


async def drained_of(redis: Redis) -> None:
    async def empty() -> bool:
        return not await redis.exists(queue_key("direct"), parked_key("direct"))

    await until(empty, "neither waits in the queue nor at a limit")


async def test_a_heavier_owner_has_more_of_the_turns(redis: Redis, desk: Desk) -> None:
    heavy = [entry(owner="heavy", weight=3.0) for _ in range(60)]
    light = [entry(owner="light") for _ in range(60)]
    await Queue(redis).put([*light, *heavy])
    async with pulling(redis, desk, slots=1):
        await desk.has(*(one.execution_id for one in (*heavy, *light)))
    mine = {one.execution_id for one in heavy}
    first = sum(execution_id in mine for execution_id in desk.arrived[:40])
    assert 28 <= first <= 32, "three of four"
