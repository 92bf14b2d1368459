"""Redis fails over while executions run: Sentinels name another master, and nothing is lost."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from dispatcher import Dispatcher
from dispatcher.cli import embedded
from shared.errors import ConfigurationError
from shared.models import Execution
from shared.redis import AWAY, connect
from shared.sentinel import address
from shared.states import Status
from tests.conftest import SpawnWorker
from tests.factories import install, make_settings
from tests.flows.conftest import QUICK
from tests.requires import missing
from tests.services import free_port
from tests.signals import until

MASTER = "themaster"
CALLS = 200


class Trio:
    """A master, its replica, and a Sentinel that watches them."""

    def __init__(self, folder: Path) -> None:
        try:
            self.program = str(embedded.valkey_program())
        except embedded.EmbeddedMissing as error:
            missing("services", str(error))
        self.folder = folder
        self.master, self.replica, self.sentinel = (free_port() for _ in range(3))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel}/{MASTER}/0"

    def start(self, port: int, *options: str) -> None:
        folder = self.folder / str(port)
        folder.mkdir()
        config = folder / "config"
        config.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n")
        with (folder / "log").open("wb") as log:
            self.processes[port] = subprocess.Popen(
                [self.program, str(config), *options], stdout=log, stderr=log
            )

    async def begin(self) -> None:
        self.start(self.master)
        self.start(self.replica, "--replicaof", f"127.0.0.1 {self.master}")
        await self.asked(self.replica, "master_link_status", "up")
        folder = self.folder / "watch"
        folder.mkdir()
        (folder / "config").write_text(
            f"port {self.sentinel}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.master} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 500\n"
            f"sentinel failover-timeout {MASTER} 5000\n"
        )
        with (folder / "log").open("wb") as log:
            self.processes[self.sentinel] = subprocess.Popen(
                [self.program, str(folder / "config"), "--sentinel"], stdout=log, stderr=log
            )
        async with Redis(port=self.sentinel) as client:

            async def knows() -> bool:
                with suppress(Exception):
                    found: Any = await client.sentinel_slaves(MASTER)  # type: ignore[no-untyped-call]
                    return len(found) == 1
                return False

            await until(knows, "the Sentinel knows the replica", deadline_s=40)

    async def asked(self, port: int, name: str, value: str) -> None:
        async def so() -> bool:
            with suppress(Exception):
                async with Redis(port=port) as client:
                    return bool((await client.info("replication"))[name] == value)
            return False

        await until(so, f"{name} is {value}", deadline_s=40)

    def kill(self, port: int) -> None:
        os.kill(self.processes[port].pid, signal.SIGKILL)
        self.processes[port].wait()


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    made = Trio(tmp_path)
    try:
        await made.begin()
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


async def test_a_master_that_dies_is_followed_by_the_next_one_and_nothing_is_lost(
    trio: Trio, database_url: str, spawn_worker: SpawnWorker
) -> None:
    variables = {**QUICK, "SKILLS_REDIS_URL": trio.url}
    await spawn_worker(**variables)
    await spawn_worker(**variables)
    async with Dispatcher.open(make_settings(database_url, trio.url)) as dispatcher:
        await install(dispatcher.pool, "said", handler_code="echo-handler")
        await dispatcher.registry.changed()
        await dispatcher.submit("said", {"n": -1}, wait_s=30)

        async def submit(number: int) -> Execution:
            await asyncio.sleep(number * 0.02)
            made = await dispatcher.submit("said", {"n": number}, wait_s=60)
            # Without Redis it is answered at once: committed, to be run once Redis is back.
            return made if made.finished else await dispatcher.wait(made.id, 60)

        calls = [asyncio.create_task(submit(number)) for number in range(CALLS)]
        await asyncio.wait({calls[CALLS // 4]})
        trio.kill(trio.master)
        await trio.asked(trio.replica, "role", "master")
        done = await asyncio.gather(*calls)
        assert [execution.output for execution in done] == [{"n": n} for n in range(CALLS)]
        assert {execution.status for execution in done} == {Status.SUCCESS}
        assert {execution.attempt for execution in done} == {1}, "nothing ran twice"
        after = await dispatcher.submit("said", {"n": CALLS}, wait_s=30)
        assert after.status == Status.SUCCESS


async def test_a_master_that_is_demoted_is_left_for_the_new_one(trio: Trio) -> None:
    client = connect(make_settings(redis={"url": trio.url}))
    try:
        await client.set("k", 1)

        async def begun() -> bool:
            with suppress(ResponseError):  # the Sentinel may not have looked at the replica yet
                async with Redis(port=trio.sentinel) as watch:
                    await watch.sentinel_failover(MASTER)  # type: ignore[no-untyped-call]
                    return True
            return False

        await until(begun, "the failover begins", deadline_s=40)
        await trio.asked(trio.replica, "role", "master")
        await trio.asked(trio.master, "role", "slave")

        async def written() -> bool:
            with suppress(*AWAY):
                return bool(await client.set("k", 2))
            return False

        await until(written, "the new master takes it")
        assert await client.get("k") == b"2"
    finally:
        await client.aclose()
    async with Redis(port=trio.replica) as new:
        assert await new.get("k") == b"2"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://host",
        "redis+sentinel://host:1/",
        "redis+sentinel://host:99999/m",
        "redis+sentinel://host:x/m",
        "redis+sentinel://host/m/one",
        "redis+sentinel://host/m/0/1",
        "redis+sentinel://a,,b/m",
    ],
)
def test_an_address_that_cannot_be_read_says_how_it_must_read(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SKILLS_REDIS_URL is not a Redis URL"):
        connect(make_settings(redis={"url": url}))


def test_addresses_of_sentinels_have_a_port_or_the_usual_one() -> None:
    assert address("h") == ("h", 26379)
    assert address("h:1") == ("h", 1)
    assert address("[::1]:5") == ("::1", 5)
    client = connect(make_settings(redis={"url": "redis+sentinel://me:p%40ss@a:1,b/m/3"}))
    given = client.connection_pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("me", "p@ss", 3)
