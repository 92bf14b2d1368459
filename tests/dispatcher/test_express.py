"""A plain submit takes the short way; whatever is sent, both ways answer the same."""

import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from dispatcher import express
from tests.dispatcher.fleet import EXECUTIONS, Fleet

PLAIN = {"skillName": "echo", "input": {"text": "hi"}}
ASYNC = {"Prefer": "respond-async"}
REQUESTS: dict[str, tuple[Mapping[str, str], Any]] = {
    "plain": (ASYNC, PLAIN),
    "waiting": ({"Prefer": "wait=0"}, PLAIN),
    "several preferences": ({"Prefer": "foo, respond-async; x=1"}, PLAIN),
    "all fields": (
        ASYNC,
        {
            **PLAIN, "apiKeyId": "k", "sessionId": "s", "provider": "p", "model": "m",
            "priority": "high", "timeoutMs": 1000, "maxRetries": 1, "toolCallId": "t",
            "notBefore": "2100-01-01T00:00:00Z", "expiresAt": "2100-01-02T00:00:00Z",
            "cancelOnDisconnect": True,
        },
    ),
    "expired": (ASYNC, {**PLAIN, "expiresAt": "2001-01-01T00:00:00Z"}),
    "no credential": ({**ASYNC, "Authorization": ""}, PLAIN),
    "a wrong credential": ({**ASYNC, "Authorization": "Bearer no"}, PLAIN),
    "no scope": ({**ASYNC, "Authorization": "reader"}, PLAIN),
    "no such skill": (ASYNC, {**PLAIN, "skillName": "none"}),
    "a skill that is off": (ASYNC, {**PLAIN, "skillName": "off"}),
    "two names": (ASYNC, {**PLAIN, "skillId": "00000000-0000-0000-0000-000000000000"}),
    "an unknown field": (ASYNC, {**PLAIN, "colour": "red"}),
    "a wrong input": (ASYNC, {**PLAIN, "input": {"n": -1, "x": 1}}),
    "a wrong type": (ASYNC, {**PLAIN, "timeoutMs": "soon"}),
    "not an object": (ASYNC, [1]),
    "not JSON": (ASYNC, b"{"),
    "empty": (ASYNC, b""),
    "doubled keys": (ASYNC, b'{"skillName": "echo", "skillName": "echo"}'),
    "NUL": (ASYNC, {**PLAIN, "sessionId": "\0"}),
    "another media type": ({**ASYNC, "Content-Type": "text/plain"}, PLAIN),
    "too large": (ASYNC, b'{"a": "' + b"a" * 2_300_000 + b'"}'),
    "an input that is too large": (ASYNC, {**PLAIN, "input": {"text": "a" * 1_100_000}}),
    "a date out of reach": (ASYNC, {**PLAIN, "notBefore": "9999-12-31T23:59:59-14:00"}),
    "a key": ({**ASYNC, "Idempotency-Key": "new"}, PLAIN),
    "a wrong key": ({**ASYNC, "Idempotency-Key": "x" * 256}, PLAIN),
}  # fmt: skip
VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|20\d\d-1\d-[\dT:.]+Z|\b[0-9a-f]{32}\b")


@pytest.fixture
async def both(fleet: Fleet) -> Fleet:
    await fleet.install()
    await fleet.install("off", mode="off")
    return fleet


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_ways_answer_the_same(
    both: Fleet, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    short = await sent(both, name)
    monkeypatch.setattr(express, "plain", lambda _: False)
    long = await sent(both, name)
    assert short == long


async def test_a_submit_of_the_short_way_is_never_seen_by_the_framework(
    both: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = next(r for r in both.app.router.routes if getattr(r, "path", "") == EXECUTIONS)

    async def unreachable(*_: object) -> None:
        raise AssertionError("the long way was taken")

    monkeypatch.setattr(route, "app", unreachable)
    response = await both.api.post(EXECUTIONS, json=PLAIN, headers=ASYNC)
    assert response.status_code == 202
    keyed = {**ASYNC, "Idempotency-Key": "k"}
    assert (await both.api.post(EXECUTIONS, json=PLAIN, headers=keyed)).status_code == 500


async def sent(fleet: Fleet, name: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers and body, without what differs between any two submits."""
    headers, body = REQUESTS[name]
    if headers.get("Authorization") == "reader":
        headers = {**headers, **(await fleet.key("read:skills"))[1]}
    if headers.get("Idempotency-Key") == "new":
        headers = {**headers, "Idempotency-Key": str(uuid4())}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response: httpx.Response = await fleet.api.post(
        EXECUTIONS, content=content, headers={"Content-Type": "application/json", **headers}
    )
    found = {k: VARYING.sub("*", v) for k, v in response.headers.items() if k != "content-length"}
    return response.status_code, found, VARYING.sub("*", response.text)
