import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response

from dispatcher.routing import PUBLIC, add, body_limit, check_scopes
from shared.settings import Settings
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet, opened


async def nothing() -> Response:
    """Do nothing."""
    return Response()


async def test_a_route_without_a_known_scope_stops_start_up(settings: Settings) -> None:
    async with opened(settings) as fleet:
        check_scopes(fleet.app)
        with pytest.raises(RuntimeError, match="no known scope"):
            add(fleet.app, "GET", "/x", nothing, scope="everything")
        fleet.app.add_route("/y", lambda _: Response())
        with pytest.raises(RuntimeError, match="/y declares no known scope"):
            check_scopes(fleet.app)


async def test_a_public_route_asks_for_no_credential(fleet: Fleet) -> None:
    add(fleet.app, "GET", "/open", nothing, scope=PUBLIC)
    response = await fleet.api.get("/open", headers={"Authorization": "nonsense"})
    assert response.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_a_body_that_is_not_said_to_be_json_is_415(fleet: Fleet, kind: str) -> None:
    response = await fleet.api.post(
        EXECUTIONS, content=b'{"skillName": "echo"}', headers={"Content-Type": kind}
    )
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/x.y+json", None]
)
async def test_json_goes_by_several_names_and_by_none(fleet: Fleet, kind: str | None) -> None:
    await fleet.install()
    headers = {"Prefer": "respond-async", **({"Content-Type": kind} if kind else {})}
    response = await fleet.api.post(EXECUTIONS, content=b'{"skillName": "echo"}', headers=headers)
    assert response.status_code == 202


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"skillName": "echo"} x', 400),
        (b'{"skillName": NaN}', 400),
        (b"\xff\xfe", 400),
        (b'{"skillName": "echo", "skillName": "other"}', 422),
        (b'{"skillName": "echo", "input": {"n": 123456789012345678901234567890}}', 422),
        (b'{"skillName": "echo", "input": ' + b'{"a":' * 100 + b"1" + b"}" * 101, 422),
        (b'{"skillName": "echo", "sessionId": "a\\u0000b"}', 422),
        (b'{"skillName": "echo", "input": {"a\\u0000b": 1}}', 422),
        (b"null", 422),
        (b"[]", 422),
        (b'"echo"', 422),
        (b"{}", 422),
        (b'{"skill_name": "echo"}', 422),
        (b'{"skillName": "echo", "unheardOf": 1}', 422),
        (b'{"skillName": "echo", "skillId": "7f3f7d67-3c7f-4c2e-8a8e-000000000000"}', 422),
        (b'{"skillName": "echo", "timeoutMs": "soon"}', 422),
        (b'{"skillName": "echo", "notBefore": "2026-01-01T00:00:00"}', 422),
    ],
)
async def test_a_body_that_is_not_as_documented_is_refused_and_nothing_is_written(
    fleet: Fleet, body: bytes, status: int
) -> None:
    await fleet.install()
    response = await fleet.api.post(
        EXECUTIONS, content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    assert await fleet.rows() == 0


async def test_violations_point_to_what_is_wrong(fleet: Fleet) -> None:
    response = await fleet.api.post(
        f"{SKILLS}/install", json={"name": "a b", "tags": ["x", ""], "handler": "h"}
    )
    assert response.status_code == 422
    places = {(found["in"], found["pointer"]) for found in response.json()["violations"]}
    assert places == {("body", "/name"), ("body", "/tags/1")}


async def test_a_body_above_the_limit_is_413_by_its_declared_length(fleet: Fleet) -> None:
    await fleet.install()
    text = "x" * body_limit(fleet.dispatcher)
    response = await fleet.api.post(EXECUTIONS, json={"skillName": "echo", "input": {"text": text}})
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")


async def test_a_body_of_undeclared_length_is_counted_while_it_comes(fleet: Fleet) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    response = await fleet.api.post(
        EXECUTIONS, content=endless(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413
    assert sent <= body_limit(fleet.dispatcher) + 2 * 65536


async def test_an_input_above_its_limit_is_413_and_one_at_the_limit_is_taken(
    fleet: Fleet,
) -> None:
    await fleet.install(schema={"input": {"type": "object"}})
    limit = fleet.dispatcher.settings.max.input_bytes
    frame = len(json.dumps({"t": ""}, separators=(",", ":")))

    async def send(length: int) -> Any:
        body = {"skillName": "echo", "input": {"t": "x" * (length - frame)}}
        headers = {"Prefer": "respond-async"}
        return await fleet.api.post(EXECUTIONS, json=body, headers=headers)

    assert (await send(limit)).status_code == 202
    assert (await send(limit + 1)).status_code == 413
