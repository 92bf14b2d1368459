"""Why an execution is pending: one test for each reason, over REST, in both ways of asking."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis

from shared import keys, live, pauses, presence
from shared.executions import Ending, Executions
from shared.gates import Admission, Gates
from shared.presence import Presence
from shared.redis import queue_key
from shared.states import Status
from tests.dispatcher.fleet import EXECUTIONS, WORKER, Fleet
from tests.factories import claim_one
from worker.lease import Leases


async def works(fleet: Fleet, *, rate: float = 0.0, handler: str = "echo-handler") -> None:
    """Have a worker be there that offers a handler, as its heartbeat says it."""
    me = Presence(
        id=WORKER,
        host="h",
        pid=1,
        queues=("direct",),
        handlers=(handler,),
        slots=4,
        running=0,
        sandbox=None,
        lease_ms=60_000,
        rates={"direct": rate},
        consuming=True,
    )
    await presence.beat(fleet.dispatcher.pool, me)


async def reason(fleet: Fleet, execution: dict[str, Any]) -> dict[str, Any]:
    """Return the reason, the same from the record and from the list."""
    one = (await fleet.api.get(f"{EXECUTIONS}/{execution['id']}")).json()["execution"]
    page = (await fleet.api.get(EXECUTIONS)).json()["data"]
    (listed,) = [row for row in page if row["id"] == execution["id"]]
    assert one["pendingReason"] == listed["pendingReason"]
    found: dict[str, Any] = one["pendingReason"]
    assert found["message"]
    return found


@pytest.fixture
async def staffed(fleet: Fleet) -> Fleet:
    await fleet.install()
    await works(fleet)
    return fleet


async def test_no_worker_offers_the_handler(fleet: Fleet) -> None:
    await fleet.install()
    execution = await fleet.submit()
    assert execution["pendingReason"]["code"] == "no_worker"
    found = await reason(fleet, execution)
    assert found["code"] == "no_worker"
    assert "echo-handler" in found["message"]
    await works(fleet, handler="another")
    assert (await reason(fleet, execution))["code"] == "no_worker"


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        ("queue", "direct", "queue_paused"),
        ("skill", "echo", "skill_paused"),
        ("owner", "system", "owner_paused"),
    ],
)
async def test_it_is_paused(staffed: Fleet, kind: Any, name: str, code: str) -> None:
    await pauses.pause(staffed.dispatcher.pool, kind, name, "test")
    await staffed.dispatcher.registry.changed()
    execution = await staffed.submit()
    assert execution["pendingReason"]["code"] == code
    found = await reason(staffed, execution)
    assert found["code"] == code
    assert f"skillfleet pauses remove {kind} {name}" in found["message"]
    await pauses.resume(staffed.dispatcher.pool, kind, name, "test")
    await staffed.dispatcher.registry.changed()
    assert (await reason(staffed, execution))["code"] == "queued"


async def test_the_switch_is_off(staffed: Fleet) -> None:
    execution = await staffed.submit()
    await live.put(staffed.dispatcher.pool, {"skillsEnabled": False}, "test")
    await staffed.dispatcher.registry.changed()
    assert (await reason(staffed, execution))["code"] == "switch_off"


async def test_its_time_has_not_come(staffed: Fleet) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    execution = await staffed.submit(notBefore=moment.isoformat())
    assert execution["pendingReason"]["code"] == "not_before"
    found = await reason(staffed, execution)
    assert found["code"] == "not_before"
    assert datetime.fromisoformat(found["at"]) == moment


async def test_it_waits_for_its_retry(staffed: Fleet) -> None:
    execution = await staffed.submit()
    doors = Executions(staffed.dispatcher.pool, ["echo-handler"])
    claim = await claim_one(doors, UUID(execution["id"]), WORKER)
    assert claim is not None
    back = Ending(
        id=claim.id, attempt=1, worker_id=WORKER, status=Status.PENDING, retry_in_s=3600.0
    )
    await doors.finish(back)
    found = await reason(staffed, execution)
    assert found["code"] == "retry_at"
    assert datetime.fromisoformat(found["at"]) > datetime.now(UTC) + timedelta(minutes=50)


async def test_it_waits_for_approval(staffed: Fleet) -> None:
    execution = await staffed.submit()
    await staffed.dispatcher.pool.execute("UPDATE skill_executions SET approval = 'required'")
    assert (await reason(staffed, execution))["code"] == "approval"


@pytest.mark.parametrize("code", ["fleet_limit", "owner_limit", "skill_limit"])
async def test_it_waits_at_a_limit(staffed: Fleet, redis: Redis, code: str) -> None:
    pool, registry = staffed.dispatcher.pool, staffed.dispatcher.registry
    key, headers = await staffed.key()
    if code == "fleet_limit":
        await live.put(pool, {"maxRunning": 1}, "test")
    elif code == "owner_limit":
        await keys.change(pool, key, {"concurrency_limit": 1}, "test")
    else:
        await staffed.install(concurrencyLimit=1, replace=True)
    await registry.changed()
    snapshot = await registry.snapshot()
    made = [await staffed.submit(headers) for _ in range(2)]
    taken = (await Leases(redis, "direct", WORKER, 10.0).cycle(2, [], "")).entries
    admissions = [
        Admission(one.id, one.turn, snapshot.limits(key, made[0]["skillId"])) for one in taken
    ]
    assert len(await Gates(redis).admit("direct", admissions, WORKER, 10.0)) == 1
    found = await reason(staffed, made[1])
    assert found["code"] == code
    assert "1 at once" in found["message"]


async def test_its_place_in_line_and_the_wait_to_expect(staffed: Fleet) -> None:
    made = [await staffed.submit() for _ in range(3)]
    assert made[0]["pendingReason"]["code"] == "queued"
    first, third = [await reason(staffed, execution) for execution in (made[0], made[2])]
    assert (first["code"], first["position"], first["expectedWaitMs"]) == ("queued", 1, None)
    await works(staffed, rate=2.0)
    third = await reason(staffed, made[2])
    assert (third["code"], third["position"], third["expectedWaitMs"]) == ("queued", 3, 1500)
    high = await staffed.submit(priority="high")
    assert (await reason(staffed, high))["position"] == 1
    assert (await reason(staffed, made[0]))["position"] == 2


async def test_an_execution_that_nobody_rang_for_is_still_explained(
    staffed: Fleet, redis: Redis
) -> None:
    execution = await staffed.submit()
    await redis.delete(queue_key("direct"))
    found = await reason(staffed, execution)
    assert (found["code"], found["position"]) == ("queued", None)


async def test_without_redis_it_says_so(staffed: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = await staffed.submit()
    gone = Redis.from_url("redis://127.0.0.1:1/0")
    monkeypatch.setattr(staffed.dispatcher.reasons._queue, "_redis", gone)
    assert (await reason(staffed, execution))["code"] == "queue_unavailable"
    await gone.aclose()


async def test_what_runs_or_has_ended_has_no_reason(staffed: Fleet) -> None:
    execution = await staffed.submit()
    await staffed.run(execution["id"])
    ended = (await staffed.api.get(f"{EXECUTIONS}/{execution['id']}")).json()["execution"]
    assert (ended["status"], ended["pendingReason"]) == ("success", None)
