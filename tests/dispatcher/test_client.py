import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import pytest

import dispatcher
from dispatcher import calls
from dispatcher.client import Client
from shared.errors import (
    AlreadyFinished,
    BadRequest,
    Forbidden,
    IdentityConflict,
    InvalidInput,
    NotFound,
    SkillDisabled,
    SkillExists,
    SkillfleetError,
    SkillNotFound,
    SwitchedOff,
    Unauthenticated,
    Unavailable,
    UnknownHandler,
    UnsupportedMedia,
)
from shared.models import Execution
from shared.states import Status
from tests.dispatcher.fleet import ECHO_SCHEMA, SKILLS, Fleet
from tests.services import MANAGEMENT_TOKEN


@pytest.fixture
async def remote(fleet: Fleet) -> AsyncIterator[Client]:
    transport = httpx.ASGITransport(app=fleet.app)
    async with Client("http://dispatcher.test", MANAGEMENT_TOKEN, transport=transport) as client:
        yield client


async def test_a_skill_is_installed_run_and_removed_by_the_client(
    fleet: Fleet, remote: Client
) -> None:
    await fleet.announce()
    skill = await remote.install(
        name="@x/echo", handler_code="echo-handler", skill_schema=None, tags=["t"]
    )
    assert (skill.identity, skill.tags) == ("@x/echo@1.0.0", ("t",))
    asked = asyncio.create_task(remote.submit("@x/echo", {"text": "hi"}, session_id="s"))
    await fleet.run(await fleet.pending())
    execution = await asked
    assert (execution.status, execution.output) == (Status.SUCCESS, {"text": "hi"})
    assert await remote.get(execution.id) == await remote.wait(execution.id, 60) == execution
    assert [found.version for found in await remote.versions("@x/echo")] == ["1.0.0"]
    assert await remote.unregister("@x/echo", "1.0.0") == 1


async def test_pages_are_followed_by_their_cursor_and_counted(fleet: Fleet, remote: Client) -> None:
    await fleet.install()
    made = [(await remote.submit("echo", {}, wait_s=0, session_id="s")).id for _ in range(3)]
    first = await remote.list(limit=2, session_id="s")
    assert [row.id for row in first.data] == made[:0:-1]
    rest = await remote.list(limit=2, session_id="s", cursor=first.next_cursor)
    assert ([row.id for row in rest.data], rest.next_cursor) == (made[:1], None)
    assert await remote.count(status="pending") == 3
    assert await remote.count(session_id="other") == 0


async def test_waiting_returns_what_there_is_when_the_time_is_up(
    fleet: Fleet, remote: Client
) -> None:
    await fleet.install()
    made = await remote.submit("echo", wait_s=0)
    assert (await remote.wait(made.id, 0.05)).status is Status.PENDING
    waiting = asyncio.create_task(remote.wait(made.id, 500))
    await fleet.run(made.id)
    assert (await waiting).finished


async def test_an_execution_is_cancelled_by_the_client_alone_and_by_a_filter(
    fleet: Fleet, remote: Client
) -> None:
    await fleet.install()
    made = await remote.submit("echo", wait_s=0)
    done = await remote.cancel(made.id)
    assert (done.status, done.error_code) == (Status.ERROR, "cancelled")
    assert await remote.cancel(str(made.id), wait_s=0) == done
    other = await remote.submit("echo", wait_s=0)
    await fleet.run(other.id)
    with pytest.raises(AlreadyFinished):
        await remote.cancel(other.id)
    await remote.submit("echo", wait_s=0, session_id="s")
    assert await remote.cancel_all(session_id="s") == {"ended": 1, "stopping": 0}
    with pytest.raises(InvalidInput):
        await remote.cancel_all()


async def test_many_are_submitted_by_the_client_each_with_its_own_answer(
    fleet: Fleet, remote: Client
) -> None:
    await fleet.install()
    asked = [
        {"skill_name": "echo", "input": {"text": "hi"}, "idempotency_key": "k"},
        {"skill_name": "echo", "input": {"n": -1}},
    ]
    waiting = asyncio.create_task(remote.submit_many(asked, wait_s=60))
    await fleet.run(await fleet.pending())
    good, wrong = await waiting
    assert isinstance(good, Execution)
    assert (good.status, good.output) == (Status.SUCCESS, {"text": "hi"})
    assert isinstance(wrong, InvalidInput)
    assert wrong.violations[0]["pointer"] == "/n"
    assert await remote.submit_many(asked[:1]) == [good]


async def test_errors_come_back_as_those_of_the_tree(fleet: Fleet, remote: Client) -> None:
    skill = await fleet.install()
    with pytest.raises(SkillNotFound, match="Skill not found: no") as missing:
        await remote.submit("no")
    assert missing.value.code == "skill_not_found"
    with pytest.raises(InvalidInput) as invalid:
        await remote.submit("echo", {"n": -1})
    assert [found["pointer"] for found in invalid.value.violations] == ["/n"]
    await remote.submit("echo", {}, idempotency_key="k", wait_s=0)
    with pytest.raises(IdentityConflict):
        await remote.submit("echo", {"n": 1}, idempotency_key="k")
    with pytest.raises(SkillExists):
        await remote.install(name="echo", handler_code="echo-handler", skill_schema=ECHO_SCHEMA)
    with pytest.raises(UnknownHandler) as unknown:
        await remote.install(name="x", handler_code="unheard-of")
    assert unknown.value.known == ("echo-handler",)
    with pytest.raises(NotFound):
        await remote.get(skill["id"])
    await fleet.api.put(f"{SKILLS}/{skill['id']}", json={"mode": "off"})
    with pytest.raises(SkillDisabled):
        await remote.submit("echo")
    await fleet.api.put(f"{SKILLS}/settings", json={"skillsEnabled": False})
    with pytest.raises(SwitchedOff):
        await remote.submit("echo")


async def test_credentials_that_do_not_count_raise(fleet: Fleet) -> None:
    _, headers = await fleet.key("read:skills")
    reads = headers["Authorization"].removeprefix("Bearer ")
    transport = httpx.ASGITransport(app=fleet.app)
    for token, error in (("wrong", Unauthenticated), (reads, Forbidden)):
        async with Client("http://dispatcher.test", token, transport=transport) as client:
            with pytest.raises(error):
                await client.submit("echo")


async def test_a_dispatcher_that_is_not_there_is_unavailable() -> None:
    async with Client("http://127.0.0.1:1", "token", timeout_s=2) as client:
        with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1"):
            await client.submit("echo")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_request", BadRequest),
        (400, "a_code_of_tomorrow", BadRequest),
        (404, None, NotFound),
        (415, "unsupported_media_type", UnsupportedMedia),
        (418, "teapot", SkillfleetError),
        (502, None, SkillfleetError),
        (503, "unavailable", Unavailable),
    ],
)
def test_the_class_of_an_error_is_found_by_code_and_status(
    status: int, code: str | None, kind: type[SkillfleetError]
) -> None:
    made = calls.error(status, {"code": code, "error": "why"} if code else {})
    assert type(made) is kind
    assert made.message == "why" or str(status) in made.message


def test_the_read_timeout_follows_the_wait() -> None:
    timeouts = [
        calls.submit("echo", {}, None, wait_s, {}).arguments(10.0)["timeout"].read
        for wait_s in (None, 0, 3, 500)
    ]
    assert timeouts == [130, 10, 13, 130]


def test_fields_of_a_newer_dispatcher_are_left_aside() -> None:
    page = {"data": [], "limit": 1, "nextCursor": "x", "fieldOfTomorrow": 1}
    assert calls.executions(page).next_cursor == "x"


def test_the_client_needs_neither_web_framework_nor_database_driver() -> None:
    code = (
        "import sys, dispatcher; dispatcher.Client, dispatcher.SyncClient\n"
        "unwanted = {'fastapi', 'starlette', 'uvicorn', 'asyncpg', 'redis'} & set(sys.modules)\n"
        "sys.exit(' '.join(unwanted) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_offers_its_three_names_and_no_others() -> None:
    assert {getattr(dispatcher, name).__name__ for name in dispatcher.__all__} == {
        "Client",
        "Dispatcher",
        "SyncClient",
    }
    with pytest.raises(AttributeError):
        _ = dispatcher.Nonsense
