from datetime import UTC, datetime, timedelta

import pytest
from starlette.datastructures import Headers

from dispatcher.app import create_app
from dispatcher.auth import token
from shared.errors import ConfigurationError, Unauthenticated
from shared.settings import Settings
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet, bearer, client, opened
from tests.services import MANAGEMENT_TOKEN
from tests.signals import until

KEYS = f"{SKILLS}/keys"


@pytest.mark.parametrize(
    "sent",
    [
        [],
        ["Bearer"],
        ["Bearer "],
        ["token"],
        ["Basic dG9rZW4="],
        ["Bearer a b"],
        ["Bearer a, Bearer b"],
        ["Bearer caf\xe9"],
        ["Bearer a\n"],
        ["Bearer " + "a" * 513],
        ["Bearer a", "Bearer a"],
    ],
)
def test_what_is_not_one_bearer_token_is_no_credential(sent: list[str]) -> None:
    raw = [(b"authorization", value.encode("latin-1")) for value in sent]
    with pytest.raises(Unauthenticated):
        token(Headers(raw=raw))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_taken_in_any_letter_case(scheme: str) -> None:
    assert token(Headers({"Authorization": f"{scheme} abc"})) == "abc"


async def test_without_a_management_token_none_is_accepted(settings: Settings) -> None:
    without = settings.model_copy(
        update={"management": settings.management.model_copy(update={"token": None})}
    )
    async with opened(without) as fleet:
        for sent in ("", "None", MANAGEMENT_TOKEN):
            response = await fleet.api.get(SKILLS, headers=bearer(sent))
            assert response.status_code == 401


@pytest.mark.parametrize("value", ["two words", "caf\xe9", "x" * 513])
def test_a_management_token_that_no_request_could_carry_stops_start_up(
    settings: Settings, value: str
) -> None:
    changed = Settings(**{**settings.model_dump(), "management": {"token": value}})
    with pytest.raises(ConfigurationError, match="SKILLS_MANAGEMENT_TOKEN"):
        create_app(changed)


async def test_unknown_revoked_and_expired_keys_get_the_very_same_answer(fleet: Fleet) -> None:
    revoked_id, revoked = await fleet.key()
    _, expired = await fleet.key(expires_at=datetime.now(UTC) - timedelta(days=1))
    assert (await fleet.api.delete(f"{KEYS}/{revoked_id}")).status_code == 200
    answers = [
        await fleet.api.get(EXECUTIONS, headers=headers)
        for headers in (bearer("sfk_never_made"), revoked, expired)
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert {answer.headers["WWW-Authenticate"] for answer in answers} == {
        'Bearer realm="skillfleet"'
    }


async def test_a_key_in_use_is_refused_once_its_time_has_come(fleet: Fleet) -> None:
    _, headers = await fleet.key(expires_at=datetime.now(UTC) + timedelta(seconds=1))
    assert (await fleet.api.get(EXECUTIONS, headers=headers)).status_code == 200

    async def refused() -> bool:
        return (await fleet.api.get(EXECUTIONS, headers=headers)).status_code == 401

    await until(refused, "the key expires")


async def test_a_revocation_counts_at_once_in_every_process(
    fleet: Fleet, settings: Settings
) -> None:
    key_id, headers = await fleet.key()
    async with opened(settings) as other:
        for each in (fleet, other):
            assert (await each.api.get(EXECUTIONS, headers=headers)).status_code == 200
        assert (await other.api.delete(f"{KEYS}/{key_id}")).status_code == 200
        assert (await other.api.get(EXECUTIONS, headers=headers)).status_code == 401

        async def refused() -> bool:
            return (await fleet.api.get(EXECUTIONS, headers=headers)).status_code == 401

        await until(refused, "the other process has heard of it", deadline_s=5)


async def test_the_use_of_a_key_is_noted_but_not_every_time(fleet: Fleet) -> None:
    key_id, headers = await fleet.key()
    used = "SELECT last_used_at FROM api_keys WHERE id = $1"
    assert await fleet.dispatcher.pool.fetchval(used, key_id) is None
    await fleet.api.get(EXECUTIONS, headers=headers)
    first = await until(lambda: fleet.dispatcher.pool.fetchval(used, key_id), "a note")
    await fleet.api.get(EXECUTIONS, headers=headers)
    await fleet.app.state.gate.close()
    assert await fleet.dispatcher.pool.fetchval(used, key_id) == first


async def test_a_credential_without_the_scope_is_forbidden(fleet: Fleet) -> None:
    await fleet.install()
    _, reads = await fleet.key("read:skills")
    _, executes = await fleet.key("execute:skills")
    _, manages = await fleet.key("manage")
    body = {"skillName": "echo"}
    assert (await fleet.api.post(EXECUTIONS, json=body, headers=reads)).status_code == 403
    assert (await fleet.api.get(EXECUTIONS, headers=executes)).status_code == 403
    assert (await fleet.api.get(SKILLS, headers=reads)).status_code == 403
    assert (await fleet.api.get(SKILLS, headers=manages)).status_code == 200
    assert await fleet.rows() == 0


async def test_who_comes_without_a_credential_learns_nothing_else_first(fleet: Fleet) -> None:
    await fleet.api.put(f"{SKILLS}/settings", json={"skillsEnabled": False})
    async with client(fleet.app, None) as stranger:
        for method, path, body in (
            ("POST", EXECUTIONS, b'{"skillName": "echo"}'),
            ("POST", EXECUTIONS, b"not json"),
            ("POST", EXECUTIONS, b"[" * 100),
            ("POST", EXECUTIONS, b"x" * 4_000_000),
            ("GET", f"{EXECUTIONS}?limit=no", b""),
            ("GET", f"{EXECUTIONS}/no-uuid", b""),
            ("PATCH", SKILLS, b""),
            ("OPTIONS", SKILLS, b""),
            ("GET", f"{SKILLS}/there/is/no/such/path", b""),
        ):
            response = await stranger.request(method, path, content=body)
            assert response.status_code == 401, (method, path)
            assert response.json()["code"] == "unauthenticated"


async def test_a_key_sees_the_skills_it_is_allowed_and_no_others(fleet: Fleet) -> None:
    await fleet.install("echo")
    await fleet.install("other")
    _, headers = await fleet.key(allowed=["echo"])
    await fleet.submit(headers, skillName="echo")
    response = await fleet.api.post(EXECUTIONS, json={"skillName": "other"}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (404, "skill_not_found")
