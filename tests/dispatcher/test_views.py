"""What operators watch, and what a key sees of it."""

from uuid import UUID

from shared import live, pauses, presence
from shared.executions import Ending, Executions
from shared.states import Status
from tests.dispatcher.fleet import SKILLS, WORKER, Fleet
from tests.dispatcher.test_reasons import works
from tests.factories import claim_one


async def test_stats_are_a_key_s_own_and_everybody_s_for_management(fleet: Fleet) -> None:
    await fleet.install()
    owner, headers = await fleet.key()
    await fleet.submit()
    made = [await fleet.submit(headers) for _ in range(4)]
    await fleet.run(made[0]["id"])
    doors = Executions(fleet.dispatcher.pool, ["echo-handler"])
    for execution, status in ((made[1], Status.ERROR), (made[2], Status.TIMEOUT)):
        claim = await claim_one(doors, UUID(execution["id"]), WORKER)
        assert claim is not None
        ending = Ending(claim.id, 1, WORKER, status, None, "handler_failed", "no")
        await doors.finish(ending)
    own = (await fleet.api.get(f"{SKILLS}/stats", headers=headers)).json()
    assert {name: own[name] for name in ("pending", "running", "submitted")} == {
        "pending": 1,
        "running": 0,
        "submitted": 4,
    }
    assert (own["success"], own["error"], own["timeout"]) == (1, 1, 1)
    assert own["errors"] == {"handler_failed": 2}
    assert own["runMs"] >= 0
    assert own["oldestPendingMs"] >= 0
    assert own["windowMs"] == 3_600_000
    everybody = (await fleet.api.get(f"{SKILLS}/stats")).json()
    assert (everybody["pending"], everybody["submitted"]) == (2, 5)
    named = await fleet.api.get(f"{SKILLS}/stats", params={"apiKeyId": owner})
    assert named.json()["submitted"] == 4
    other = await fleet.api.get(f"{SKILLS}/stats", params={"apiKeyId": "system"}, headers=headers)
    assert other.json()["submitted"] == 4, "a key sees its own, whatever it asks for"


async def test_stats_of_nothing_are_zeros(fleet: Fleet) -> None:
    found = (await fleet.api.get(f"{SKILLS}/stats")).json()
    assert found["submitted"] == found["pending"] == found["success"] == 0
    assert (found["errors"], found["runMs"], found["oldestPendingMs"]) == ({}, None, None)


async def test_queues_tell_what_waits_runs_and_is_paused(fleet: Fleet) -> None:
    await fleet.install()
    await works(fleet, rate=4.0)
    made = [await fleet.submit() for _ in range(3)]
    await fleet.submit(notBefore="2100-01-01T00:00:00Z")
    doors = Executions(fleet.dispatcher.pool, ["echo-handler"])
    assert await claim_one(doors, UUID(made[0]["id"]), WORKER)
    await pauses.pause(fleet.dispatcher.pool, "queue", "sandbox", "test")
    await fleet.dispatcher.registry.changed()
    direct, sandbox = (await fleet.api.get(f"{SKILLS}/queues")).json()["data"]
    assert (direct["name"], direct["waiting"], direct["running"], direct["later"]) == (
        "direct",
        2,
        1,
        1,
    )
    assert (direct["workers"], direct["slots"], direct["rate"]) == (1, 4, 4.0)
    assert direct["expectedWaitMs"] == 500
    assert direct["oldestWaitMs"] >= 0
    assert (direct["paused"], sandbox["paused"]) == (False, True)
    assert (sandbox["waiting"], sandbox["oldestWaitMs"], sandbox["expectedWaitMs"]) == (0, None, 0)


async def test_workers_are_shown_until_a_day_after_they_went(fleet: Fleet) -> None:
    await works(fleet, rate=1.5)
    (shown,) = (await fleet.api.get(f"{SKILLS}/workers")).json()["data"]
    assert (shown["id"], shown["live"], shown["consuming"]) == (WORKER, True, True)
    assert (shown["handlers"], shown["rates"]) == (["echo-handler"], {"direct": 1.5})
    await presence.leave(fleet.dispatcher.pool, WORKER)
    (gone,) = (await fleet.api.get(f"{SKILLS}/workers")).json()["data"]
    assert (gone["live"], gone["stoppedAt"] is not None) == (False, True)


async def test_views_of_the_fleet_are_an_operator_s(fleet: Fleet) -> None:
    _, headers = await fleet.key()
    for path in ("queues", "workers"):
        assert (await fleet.api.get(f"{SKILLS}/{path}", headers=headers)).status_code == 403
    await live.put(fleet.dispatcher.pool, {"skillsEnabled": False}, "test")
    await fleet.dispatcher.registry.changed()
    assert (await fleet.api.get(f"{SKILLS}/stats")).status_code == 200, "reading goes on"
