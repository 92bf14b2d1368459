"""What is refused before it is committed: too fast, or too many that wait."""

import asyncio
from typing import Any

import httpx
from redis.asyncio import Redis

from dispatcher.limits import PERIOD_MS, TAKE
from shared import live
from shared.redis import rate_key
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet

ASYNC = {"Prefer": "respond-async"}
BODY: dict[str, Any] = {"skillName": "echo", "input": {"text": "hi"}}


async def limited(fleet: Fleet, **limits: Any) -> tuple[str, dict[str, str]]:
    """Make a key with limits, over REST; return its id and its header."""
    key_id, headers = await fleet.key("execute:skills", "read:skills")
    answer = await fleet.api.put(f"{SKILLS}/keys/{key_id}", json=limits)
    assert answer.status_code == 200, answer.text
    assert {name: answer.json()[name] for name in limits} == limits
    return key_id, headers


async def submit(fleet: Fleet, headers: dict[str, str], **more: str) -> httpx.Response:
    return await fleet.api.post(EXECUTIONS, json=BODY, headers={**ASYNC, **headers, **more})


async def test_who_submits_too_fast_is_told_when_to_come_again(fleet: Fleet) -> None:
    await fleet.install()
    _, headers = await limited(fleet, rateLimit=3)
    _, others = await fleet.key()
    assert [(await submit(fleet, headers)).status_code for _ in range(3)] == [202] * 3
    refused = await submit(fleet, headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 20, "a third of a minute, to the next one"
    assert "3 executions a minute" in refused.json()["error"]
    assert (await submit(fleet, others)).status_code == 202
    assert await fleet.dispatcher.count() == 4, "what is refused leaves no row"


async def test_a_replay_costs_nothing(fleet: Fleet) -> None:
    await fleet.install()
    _, headers = await limited(fleet, rateLimit=2)
    key = {"Idempotency-Key": "k"}
    answers = [await submit(fleet, headers, **key) for _ in range(6)]
    assert {answer.status_code for answer in answers} == {202}
    assert (await submit(fleet, headers)).status_code == 202
    assert (await submit(fleet, headers)).status_code == 429
    assert (await submit(fleet, headers, **key)).status_code == 202


async def test_each_of_a_batch_is_judged_by_itself(fleet: Fleet) -> None:
    await fleet.install()
    _, headers = await limited(fleet, rateLimit=3)
    wrong = {**BODY, "input": {"n": -1}}
    answer = await fleet.api.post(
        f"{EXECUTIONS}/batch", json={"executions": [BODY, wrong, *[BODY] * 4]}, headers=headers
    )
    results = answer.json()["results"]
    assert [result["status"] for result in results] == [202, 422, 202, 202, 429, 429]
    assert results[-1]["code"] == "rate_limited"


async def test_a_full_queue_takes_nothing_new_but_answers_replays(fleet: Fleet) -> None:
    await fleet.install()
    await live.put(fleet.dispatcher.pool, {"queueLimit": 3}, "test")
    await fleet.dispatcher.registry.changed()
    keyed = await submit(fleet, {}, **{"Idempotency-Key": "k"})
    assert keyed.status_code == 202
    batch = await fleet.api.post(f"{EXECUTIONS}/batch", json={"executions": [BODY] * 4})
    assert [result["status"] for result in batch.json()["results"]] == [202, 202, 503, 503]
    refused = await submit(fleet, {})
    assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    again = await submit(fleet, {}, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (202, "true")
    await live.put(fleet.dispatcher.pool, {"queueLimit": None}, "test")
    await fleet.dispatcher.registry.changed()
    assert (await submit(fleet, {})).status_code == 202


async def test_a_rate_holds_under_a_rush_and_its_key_has_a_time_to_live(
    fleet: Fleet, redis: Redis
) -> None:
    await fleet.install()
    key_id, headers = await limited(fleet, rateLimit=10)
    answers = await asyncio.gather(*(submit(fleet, headers) for _ in range(40)))
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(202), statuses.count(429)) == (10, 30)
    assert 0 < await redis.pttl(rate_key(key_id)) <= PERIOD_MS


async def test_a_time_far_ahead_counts_as_a_full_minute_at_most(redis: Redis) -> None:
    take = redis.register_script(TAKE)
    for value in (b"9e99", b"soon", b"nan"):
        await redis.set("r", value)
        taken, after_ms = await take(keys=["r"], args=[60, PERIOD_MS, 1])
        assert (taken, after_ms <= 1001) in {(0, True), (1, True)}, value


async def test_limits_of_a_key_are_shown_changed_and_taken_away(fleet: Fleet) -> None:
    made = await fleet.api.post(
        f"{SKILLS}/keys",
        json={"name": "k", "scopes": ["execute:skills"], "concurrencyLimit": 2, "weight": 2.5},
    )
    assert (made.json()["concurrencyLimit"], made.json()["rateLimit"]) == (2, None)
    path = f"{SKILLS}/keys/{made.json()['id']}"
    changed = await fleet.api.put(path, json={"concurrencyLimit": None, "rateLimit": 7})
    assert (changed.json()["concurrencyLimit"], changed.json()["rateLimit"]) == (None, 7)
    assert changed.json()["weight"] == 2.5
    for wrong in ({"weight": 0}, {"weight": None}, {"rateLimit": 0}, {"name": None}, {"x": 1}):
        assert (await fleet.api.put(path, json=wrong)).status_code == 422, wrong
    assert (await fleet.api.put(path, json={})).status_code == 400
    assert (await fleet.api.put(f"{SKILLS}/keys/none", json={"weight": 1})).status_code == 404
    snapshot = await fleet.dispatcher.registry.snapshot()
    assert snapshot.weight(made.json()["id"]) == 2.5


async def test_a_skill_s_limit_is_installed_changed_and_seen_by_workers(fleet: Fleet) -> None:
    skill = await fleet.install(concurrencyLimit=4)
    assert skill["concurrencyLimit"] == 4
    snapshot = await fleet.dispatcher.registry.snapshot()
    assert [tuple(limit) for limit in snapshot.limits("o", skill["id"])] == [
        (f"skill:{skill['id']}", 4)
    ]
    answer = await fleet.api.put(f"{SKILLS}/{skill['id']}", json={"concurrencyLimit": None})
    assert answer.json()["skill"]["concurrencyLimit"] is None
    assert not (await fleet.dispatcher.registry.snapshot()).limited
