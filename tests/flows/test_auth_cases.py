"""The lines of cases/auth.jsonl for the surfaces that exist, against a real socket."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from shared import keys
from shared.settings import load
from tests.casefiles import each_case
from tests.dispatcher.fleet import SKILLS, Fleet, opened
from tests.flows.serving import Answer, send, serving
from tests.services import MANAGEMENT_TOKEN

LATER = {
    "/mcp": "MCP comes with the model's side",
    "/a2a": "A2A comes with the model's side",
    "/.well-known/agent-card.json": "A2A comes with the model's side",
}
"""Paths of the case file that are not served yet; a test below fails once one is."""

PLACEHOLDER = re.compile(r"\$\{(\w+)(:-1|\^case)?\}")

STATE = "SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {} AS t"
TABLES = ("skills", "skill_executions", "settings", "execution_keys", "audit")


@dataclass(frozen=True, slots=True)
class Stage:
    """What the placeholders stand for, and where to send."""

    fleet: Fleet
    port: int
    words: dict[str, str]


@pytest.fixture
async def stage(database_url: str, redis_url: str) -> AsyncIterator[Stage]:
    settings = load(
        database={"url": database_url},
        redis={"url": redis_url},
        management={"token": MANAGEMENT_TOKEN},
    )
    async with opened(settings) as fleet, serving(fleet.app) as port, working(fleet):
        yield Stage(fleet, port, await cast_of(fleet))


@each_case("auth")
async def test_who_may_do_what_over_http(case: dict[str, Any], stage: Stage) -> None:
    request = filled(case["input"]["request"], stage.words)
    expect = filled(case["expect"], stage.words)
    path = request["path"].split("?")[0]
    if path in LATER:
        pytest.skip(LATER[path])
    changes = case["input"].get("settings")
    if changes:
        response = await stage.fleet.api.put(f"{SKILLS}/settings", json=changes)
        assert response.status_code == 200
    before = await state(stage.fleet)
    known = await owners(stage.fleet)

    answer = await send(stage.port, request)

    check_answer(answer, expect)
    if expect.get("effect") == "none":
        assert await state(stage.fleet) == before
    made = {i: owner for i, owner in (await owners(stage.fleet)).items() if i not in known}
    if "owner_if_run" in expect:
        assert set(made.values()) <= {expect["owner_if_run"]}


async def test_what_is_left_out_is_truly_not_there_yet(stage: Stage) -> None:
    for path in LATER:
        for method in ("GET", "POST"):
            headers = {"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}
            answer = await send(stage.port, {"method": method, "path": path, "headers": headers})
            assert answer.status == 404, f"{path} is served: take it out of LATER"


def check_answer(answer: Answer, expect: dict[str, Any]) -> None:
    """Compare an answer with what the case expects of it."""
    assert answer.status in expect.get("status_in", [answer.status]), answer
    assert answer.status not in expect.get("status_not_in", []), answer
    for text in expect.get("sees", []):
        assert text in answer.text
    for text in expect.get("not_sees", []):
        assert text not in answer.text
    if expect.get("www_authenticate"):
        assert "www-authenticate" in {name.lower() for name in answer.headers}
    if expect.get("is_error") and answer.status == 200:
        assert "error" in answer.text.lower()


async def cast_of(fleet: Fleet) -> dict[str, str]:
    """Set the stage of cases/README.md; return what the placeholders stand for."""
    skill = await fleet.install(schema={"input": {"type": "object"}})
    words = {
        "MGMT": MANAGEMENT_TOKEN,
        "SKILL_1": skill["id"],
        "OTHER_AUDIENCE": "a-token-for-another-service",
        "SESSION": "session=somebody",
        "TASK_A": "a-task-of-a",
        "MCP_SESSION_A": "a-session-of-a",
    }
    for name in ("A", "B"):
        owner, headers = await fleet.key()
        secret, key = f"the-secret-of-{name}", f"idempotency-{name}"
        body = {"text": secret}
        made = await fleet.submit({**headers, "Idempotency-Key": key}, input=body)
        assert (await fleet.dispatcher.wait(UUID(made["id"]), 60)).finished
        words |= {
            f"ID_{name}": owner,
            f"KEY_{name}": headers["Authorization"].removeprefix("Bearer "),
            f"SECRET_{name}": secret,
            f"EXEC_{name}": made["id"],
            f"IDEMP_{name}": key,
        }
    revoked_id, revoked = await fleet.key()
    await fleet.api.delete(f"{SKILLS}/keys/{revoked_id}")
    for name, (_, headers) in (
        ("KEY_READ", await fleet.key("read:skills")),
        ("REVOKED", (revoked_id, revoked)),
        ("EXPIRED", await fleet.key(expires_at=datetime.now(UTC) - timedelta(days=1))),
    ):
        words[name] = headers["Authorization"].removeprefix("Bearer ")
    pair = f"{words['ID_A']}:{words['KEY_A']}"
    words["B64_KEY_A"] = base64.b64encode(pair.encode()).decode()
    words["HASH_A"] = keys.hashed(words["KEY_A"]).hex()
    return words


@asynccontextmanager
async def working(fleet: Fleet) -> AsyncIterator[None]:
    """Run what is submitted, as a worker would."""

    async def work() -> None:
        while True:
            await fleet.run(await fleet.pending(deadline_s=3600))

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def state(fleet: Fleet) -> list[asyncpg.Record | None]:
    """Return a fingerprint of everything that a request could change."""
    pool = fleet.dispatcher.pool
    found = [await pool.fetchrow(STATE.format(table)) for table in TABLES]
    held = "SELECT md5(string_agg(id || revoked_at::text, '|' ORDER BY id)) FROM api_keys"
    return [*found, await pool.fetchrow(held)]


async def owners(fleet: Fleet) -> dict[str, str]:
    """Return the owner of every execution."""
    rows = await fleet.dispatcher.pool.fetch("SELECT id, api_key_id FROM skill_executions")
    return {str(row["id"]): row["api_key_id"] for row in rows}


def filled(value: Any, words: dict[str, str]) -> Any:
    """Replace the placeholders in a case."""
    if isinstance(value, dict):
        return {filled(name, words): filled(item, words) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, words) for item in value]
    return PLACEHOLDER.sub(lambda m: word(m, words), value) if isinstance(value, str) else value


def word(match: re.Match[str], words: dict[str, str]) -> str:
    """Return what one placeholder stands for."""
    name, change = match.groups()
    found = words[name]
    return {":-1": found[:-1], "^case": found.swapcase()}.get(change or "", found)


def test_the_placeholders_are_read_as_the_contract_says() -> None:
    words = {"KEY_A": "aBc1"}
    assert filled(["${KEY_A:-1}x ${KEY_A^case}", {"a": "${KEY_A}"}, 1], words) == [
        "aBcx AbC1",
        {"a": "aBc1"},
        1,
    ]
