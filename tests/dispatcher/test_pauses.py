import pytest

from tests.dispatcher.fleet import SKILLS, Fleet

PAUSES, QUEUES = f"{SKILLS}/pauses", f"{SKILLS}/queues"


async def names(fleet: Fleet) -> list[tuple[str, str]]:
    found = (await fleet.api.get(PAUSES)).json()["data"]
    return [(pause["kind"], pause["name"]) for pause in found]


async def test_what_is_paused_is_listed_until_it_goes_on(fleet: Fleet) -> None:
    for kind, name in (("skill", "a/b@c"), ("owner", "key-1")):
        made = await fleet.api.post(PAUSES, json={"kind": kind, "name": name})
        assert (made.status_code, made.json()) == (201, {"success": True})
        again = await fleet.api.post(PAUSES, json={"kind": kind, "name": name})
        assert again.status_code == 201
    assert (await fleet.api.post(f"{QUEUES}/sandbox/pause")).json() == {"success": True}
    assert await names(fleet) == [("owner", "key-1"), ("queue", "sandbox"), ("skill", "a/b@c")]
    (first,) = (await fleet.api.get(PAUSES, params={"limit": 1})).json()["data"]
    assert first["pausedBy"] == "management"
    assert (await fleet.api.delete(f"{PAUSES}/skill/a/b@c")).json() == {"success": True}
    assert (await fleet.api.delete(f"{PAUSES}/skill/a/b@c")).status_code == 404
    assert (await fleet.api.post(f"{QUEUES}/sandbox/resume")).json() == {"success": True}
    assert (await fleet.api.post(f"{QUEUES}/sandbox/resume")).json() == {"success": True}
    assert await names(fleet) == [("owner", "key-1")]
    actions = await fleet.dispatcher.pool.fetch("SELECT action, target FROM audit ORDER BY id")
    assert [tuple(row) for row in actions] == [
        ("pause", "skill:a/b@c"),
        ("pause", "owner:key-1"),
        ("pause", "queue:sandbox"),
        ("resume", "skill:a/b@c"),
        ("resume", "queue:sandbox"),
    ], "each change once, and no change none"


async def test_pages_of_pauses_follow_each_other(fleet: Fleet) -> None:
    for number in range(5):
        await fleet.api.post(PAUSES, json={"kind": "owner", "name": f"key-{number}"})
    seen, cursor = [], None
    while True:
        asked = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await fleet.api.get(PAUSES, params=asked)).json()
        seen += [pause["name"] for pause in page["data"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == [f"key-{number}" for number in range(5)]


@pytest.mark.parametrize(
    "body", [{}, {"kind": "queue"}, {"kind": "worker", "name": "x"}, {"kind": "skill", "name": ""}]
)
async def test_a_pause_of_nothing_is_refused(fleet: Fleet, body: dict[str, str]) -> None:
    assert (await fleet.api.post(PAUSES, json=body)).status_code == 422


async def test_a_queue_that_there_is_not_is_refused(fleet: Fleet) -> None:
    assert (await fleet.api.post(f"{QUEUES}/fast/pause")).status_code == 422
    asked = await fleet.api.post(PAUSES, json={"kind": "queue", "name": "fast"})
    assert asked.status_code == 422
    assert "direct or sandbox" in asked.json()["error"]
