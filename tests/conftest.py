"""Fixtures: real services, a fresh database and an empty Redis a test, rooms as processes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.factories import redis_to
from tests.requires import missing
from tests.services import (
    MANAGEMENT_TOKEN,
    Databases,
    Room,
    Services,
    dispatcher_ready,
    docker_answer,
    emptied,
    free_port,
    keys_without_ttl,
    services,
    spawn,
    worker_ready,
)

SpawnDispatcher = Callable[..., Awaitable[Room]]
SpawnWorker = Callable[..., Awaitable[Room]]


@pytest.fixture(scope="session")
def live_services() -> Iterator[Services]:
    with services() as found:
        yield found


@pytest.fixture(scope="session")
def databases(live_services: Services) -> Iterator[Databases]:
    made = Databases(live_services.database_url)
    yield made
    made.close()


@pytest.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """Give a fresh database, migrated, for this test alone."""
    url = await databases.create()
    yield url
    await databases.drop(url)


@pytest.fixture
async def empty_database_url(databases: Databases) -> AsyncIterator[str]:
    """Give a database without a schema."""
    url = await databases.empty()
    yield url
    await databases.drop(url)


@pytest.fixture
def redis_url(live_services: Services) -> Iterator[str]:
    """Give a Redis without keys."""
    emptied(live_services.redis_url)
    yield live_services.redis_url
    emptied(live_services.redis_url)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with redis_to(redis_url) as client:
        yield client


@pytest.fixture
async def redis_keeps_nothing(redis_url: str) -> AsyncIterator[None]:
    """Fail the test when it leaves a Redis key behind that no TTL will remove.

    Ask for it before the fixtures whose processes write: it then looks after they are gone.
    """
    yield
    async with Redis.from_url(redis_url) as client:
        left = await keys_without_ttl(client)
    assert not left, f"Redis keys without a TTL: {left}"


@pytest.fixture(scope="session")
def docker() -> None:
    """Skip, or fail where it is required, when no Docker engine answers."""
    reason = docker_answer()
    if reason is not None:
        missing("docker", reason)


@pytest.fixture
def rooms(tmp_path: Path) -> Iterator[list[Room]]:
    """Collect the processes of a test and end them after it, by their ids."""
    started: list[Room] = []
    yield started
    for room in started:
        room.end()


@pytest.fixture
def room_env(database_url: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """Give the variables that both rooms need."""
    return {
        "SKILLS_DATABASE_URL": database_url,
        "SKILLS_REDIS_URL": redis_url,
        "SKILLS_DATA_DIR": str(tmp_path / "data"),
        "SKILLS_MANAGEMENT_TOKEN": MANAGEMENT_TOKEN,
        "SKILLS_HANDLER_MODULES": "worker.samples",
        "SKILLS_LOG_FORMAT": "json",
    }


@pytest.fixture
def spawn_dispatcher(
    room_env: dict[str, str], rooms: list[Room], tmp_path: Path
) -> SpawnDispatcher:
    """Give a function that starts a ready dispatcher: ``(await spawn_dispatcher()).url``.

    Keyword arguments are variables (``SKILLS_LOG_LEVEL="debug"``); ``ready=False`` does not wait.
    """

    async def start(*, ready: bool = True, **variables: str) -> Room:
        port = free_port()
        env = {**room_env, "SKILLS_HTTP_PORT": str(port), **variables}
        room = spawn("dispatcher", env, tmp_path)
        room.url = f"http://127.0.0.1:{env['SKILLS_HTTP_PORT']}"
        rooms.append(room)
        if ready:
            await dispatcher_ready(room)
        return room

    return start


@pytest.fixture
def spawn_worker(room_env: dict[str, str], rooms: list[Room], tmp_path: Path) -> SpawnWorker:
    """Give a function that starts a worker and waits for its presence; see spawn_dispatcher."""

    async def start(*, ready: bool = True, **variables: str) -> Room:
        env = {**room_env, **variables}
        room = spawn("worker", env, tmp_path)
        rooms.append(room)
        if ready:
            await worker_ready(room, env["SKILLS_DATABASE_URL"])
        return room

    return start
