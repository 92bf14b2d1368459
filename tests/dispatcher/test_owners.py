"""Erasing an owner over REST; the work itself is a worker's."""

from uuid import uuid4

from tests.dispatcher.fleet import SKILLS, Fleet


async def test_an_erasure_is_asked_for_and_looked_at(fleet: Fleet) -> None:
    owner, headers = await fleet.key()
    answer = await fleet.api.delete(f"{SKILLS}/owners/{owner}")
    assert (answer.status_code, answer.json()["owner"]) == (202, owner)
    assert answer.json()["finishedAt"] is None
    assert (await fleet.api.get(f"{SKILLS}/stats", headers=headers)).status_code == 401, "at once"
    found = await fleet.api.get(answer.headers["Location"])
    assert found.json() == answer.json()
    again = await fleet.api.delete(f"{SKILLS}/owners/{owner}")
    assert again.json()["id"] == answer.json()["id"]
    audited = await fleet.dispatcher.pool.fetch("SELECT action, target FROM audit")
    assert [tuple(row) for row in audited] == [("owner.erase", owner)]


async def test_what_is_everybody_s_can_t_be_erased(fleet: Fleet) -> None:
    answer = await fleet.api.delete(f"{SKILLS}/owners/system")
    assert (answer.status_code, "everybody" in answer.json()["error"]) == (422, True)
    assert (await fleet.api.get(f"{SKILLS}/erasures/{uuid4()}")).status_code == 404
