"""Postgres fails over while executions run: a synchronous standby is promoted, nothing is lost."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from dispatcher.cli import embedded
from dispatcher.cli.privileges import before_exec, unprivileged
from shared.migrate import migrate
from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.factories import install, pool_to
from tests.flows.conftest import QUICK
from tests.requires import missing
from tests.services import MANAGEMENT_TOKEN, free_port
from tests.signals import until

CALLS = 150
GIVE_UP_S = 90.0


class Pair:
    """A primary and its synchronous standby, each on a port of its own."""

    def __init__(self, folder: Path) -> None:
        try:
            self.programs = embedded.postgres_programs()
        except embedded.EmbeddedMissing as error:
            missing("services", str(error))
        self.folder = folder
        self.account = unprivileged()
        self.primary, self.standby = free_port(), free_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        hosts = f"127.0.0.1:{self.primary},127.0.0.1:{self.standby}"
        self.url = f"postgresql://{embedded.NAME}@{hosts}/postgres?target_session_attrs=read-write"

    def one(self, port: int) -> str:
        return f"postgresql://{embedded.NAME}@127.0.0.1:{port}/postgres"

    def start(self, port: int, cluster: Path) -> None:
        command = [str(self.programs / "postgres"), "-D", str(cluster)]
        for option in (
            "listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=",
            "wal_receiver_status_interval=1", "logging_collector=off",
        ):  # fmt: skip
            command += ["-c", option]
        with (self.folder / f"{port}.log").open("wb") as log:
            self.processes[port] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=before_exec(signal.SIGKILL, self.account),  # noqa: PLW1509  # no threads
            )

    async def begin(self) -> None:
        self.folder.chmod(0o755)
        first, second = self.folder / "first", self.folder / "second"
        embedded.make_cluster(self.programs, first, self.account)
        self.start(self.primary, first)
        await self.answers(self.primary)
        second.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(second, self.account.uid, self.account.gid)
        copy = [
            str(self.programs / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.primary),
            "-U", embedded.NAME, "-D", str(second), "-R", "-X", "stream", "-c", "fast",
        ]  # fmt: skip
        copied = await asyncio.to_thread(
            subprocess.run, copy, capture_output=True, check=False, cwd="/",
            preexec_fn=before_exec(signal.SIGKILL, self.account),
        )  # fmt: skip
        assert copied.returncode == 0, copied.stderr.decode()
        self.start(self.standby, second)
        await self.answers(self.standby)
        connection = await asyncpg.connect(self.one(self.primary))
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await connection.execute("SELECT pg_reload_conf()")

        async def synchronous() -> bool:
            found = await connection.fetch("SELECT sync_state FROM pg_stat_replication")
            return [row["sync_state"] for row in found] == ["sync"]

        await until(synchronous, "the standby is synchronous", deadline_s=40)
        await connection.close()

    async def answers(self, port: int) -> None:
        async def ready() -> bool:
            try:
                connection = await asyncpg.connect(self.one(port), timeout=5)
            except (OSError, asyncpg.PostgresError, TimeoutError):
                return False
            await connection.close()
            return True

        await until(ready, f"Postgres answers on {port}", deadline_s=60)

    async def fail_over(self) -> None:
        """Kill the primary, promote the standby; it has nobody to wait for now."""
        os.killpg(self.processes[self.primary].pid, signal.SIGKILL)
        self.processes[self.primary].wait()
        connection = await asyncpg.connect(self.one(self.standby))
        assert await connection.fetchval("SELECT pg_promote(true, 30)")
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()


@pytest.fixture
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    for parent in folder.parents:  # an unprivileged Postgres has to get there
        if parent.owner() == folder.owner() and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    made = Pair(folder)
    try:
        await made.begin()
        yield made
    finally:
        for process in made.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def test_a_primary_that_dies_is_followed_by_its_standby_and_nothing_is_lost(
    pair: Pair, spawn_worker: SpawnWorker, spawn_dispatcher: SpawnDispatcher, tmp_path: Path
) -> None:
    await asyncio.to_thread(migrate, pair.one(pair.primary))
    log = tmp_path / "effects"
    variables = {
        **QUICK,
        "SKILLS_DATABASE_URL": pair.url,
        "SKILLS_HANDLER_MODULES": "tests.faults.effects",
    }
    await spawn_worker(**variables)
    await spawn_worker(**variables)
    room = await spawn_dispatcher(**variables)
    async with pool_to(pair.one(pair.primary)) as pool:
        for name in ("effect", "effect-once"):
            await install(pool, name, handler_code=name, max_retries=90)
        await pool.execute("UPDATE registry_epoch SET epoch = epoch + 1")
    headers = {"Authorization": f"Bearer {MANAGEMENT_TOKEN}", "Prefer": "respond-async"}
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(
        base_url=room.url, headers=headers, trust_env=False, timeout=30
    ) as http:

        async def submit(number: int) -> UUID:
            """Submit one, again and again under its key until it is accepted."""
            await asyncio.sleep(number * 0.03)
            name = "effect-once" if number % 2 else "effect"
            body: dict[str, Any] = {
                "skillName": name, "input": {"log": str(log), "seconds": 0.05},
            }  # fmt: skip
            until_s = loop.time() + GIVE_UP_S
            while True:
                answer = await http.post(
                    "/api/skills/executions", json=body, headers={"Idempotency-Key": f"k{number}"}
                )
                if answer.status_code in (200, 202):
                    return UUID(answer.json()["execution"]["id"])
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["Retry-After"]) >= 1
                assert loop.time() < until_s, "the new primary is never found"
                await asyncio.sleep(0.1)

        calls = [asyncio.create_task(submit(number)) for number in range(CALLS)]
        await asyncio.wait({calls[CALLS // 3]})
        await pair.fail_over()
        accepted = await asyncio.gather(*calls)
    async with pool_to(pair.one(pair.standby)) as pool:

        async def ended() -> bool:
            return not await pool.fetchval(
                "SELECT count(*) FROM skill_executions WHERE ended IS NULL"
            )

        await until(ended, "all have ended", deadline_s=60)
        found = await pool.fetch(
            "SELECT id, skill_name, status, error_code, attempt FROM skill_executions"
        )
    rows = {row["id"]: row for row in found}
    assert rows.keys() == set(accepted), "what was accepted is there, once"
    effects = [UUID(line.split()[0]) for line in log.read_text().splitlines()]
    for execution_id, row in rows.items():
        times = effects.count(execution_id)
        if row["skill_name"] == "effect-once":
            assert times <= 1, dict(row)
        if row["status"] == "success":
            assert 1 <= times <= row["attempt"], dict(row)
        else:
            assert (row["skill_name"], row["error_code"]) == ("effect-once", "worker_lost")
