"""Looking at the engine from outside, with the docker command, and a sandbox to look at."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from shared.settings import Settings
from tests.signals import until
from worker.sandbox.outcome import SandboxResult
from worker.sandbox.run import Sandbox
from worker.sandbox.spec import LABEL, SandboxConfig, fleet_of

ALPINE, NODE, PYTHON = "alpine:3.20", "node:22-alpine", "python:3.12-alpine"
FAST = SandboxConfig(cpuLimit=1000)
"""A whole CPU: the tests are about endings, not about a tenth of one."""


ENV = dict(os.environ)
"""As it was: tests point DOCKER_HOST at engines that can be cut."""


def docker(*args: str, input: bytes | None = None) -> str:
    """Run the docker command; raise with its words when it fails."""
    done = subprocess.run(["docker", *args], capture_output=True, input=input, check=False, env=ENV)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def ids(**labels: str) -> list[str]:
    """Return the containers, in any state, that carry these labels."""
    filters = [f"--filter=label={LABEL}{name}={value}" for name, value in labels.items()]
    return docker("ps", "-aq", "--no-trunc", *filters).split()


def inspected(container: str) -> dict[str, Any]:
    """Return what docker inspect says; nothing of one that has gone since it was listed."""
    command = ["docker", "inspect", "--type=container", container]
    done = subprocess.run(command, capture_output=True, check=False, env=ENV)
    if done.returncode:
        assert b"o such" in done.stderr, done.stderr.decode()
        return {}
    seen: dict[str, Any] = json.loads(done.stdout)[0]
    return seen


async def container_of(execution: UUID) -> dict[str, Any]:
    """Wait until an execution's container runs; return what docker inspect says."""

    async def look() -> dict[str, Any]:
        found = await asyncio.to_thread(ids, execution=str(execution), role="run")
        seen = inspected(found[0]) if found else {}
        return seen if seen and seen["State"]["Running"] else {}

    return await until(look, f"a running container of execution {execution}")


async def playing(execution: UUID, word: str) -> dict[str, Any]:
    """Wait until a process with this word in its command runs; return docker inspect's words."""
    seen = await container_of(execution)

    async def look() -> bool:
        return word in await asyncio.to_thread(docker, "top", seen["Id"])

    await until(look, f"a process {word} in execution {execution}")
    return seen


def own_settings(**groups: Mapping[str, Any]) -> Settings:
    """Return settings of a fleet of its own: other tests use the same engine."""
    values: dict[str, Any] = {"database": {"url": f"postgresql://localhost/{uuid4().hex}"}}
    values |= groups
    values["sandbox"] = {"pull_policy": "never", **groups.get("sandbox", {})}
    return Settings(**values)


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[Sandbox]:
    """Give a started sandbox; afterwards none of its fleet's containers may be left."""
    sandbox = Sandbox(settings, worker_id=uuid4().hex)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.close()
        assert ids(fleet=fleet_of(settings.database.url)) == []


async def sh(
    sandbox: Sandbox,
    script: str,
    *,
    seconds: float = 30,
    config: SandboxConfig = FAST,
    execution_id: UUID | None = None,
    **options: Any,
) -> SandboxResult:
    """Run a shell script to its end; none of its containers may be left."""
    return await program(
        sandbox, ALPINE, ("sh", "-c", script), seconds, config, execution_id, **options
    )


async def python(
    sandbox: Sandbox,
    code: str,
    *,
    seconds: float = 30,
    config: SandboxConfig = FAST,
    **options: Any,
) -> SandboxResult:
    """Run Python code to its end; none of its containers may be left."""
    files = {"main.py": code.encode(), **options.pop("files", {})}
    return await program(
        sandbox, PYTHON, ("python3", "-u", "main.py"), seconds, config, None, files=files, **options
    )


async def program(
    sandbox: Sandbox,
    image: str,
    command: Sequence[str],
    seconds: float,
    config: SandboxConfig,
    execution_id: UUID | None,
    **options: Any,
) -> SandboxResult:
    execution_id = execution_id or uuid4()
    deadline = asyncio.get_running_loop().time() + seconds
    env = options.pop("env", {})
    result = await sandbox.run(
        image, command, env, config, execution_id=execution_id, deadline=deadline, **options
    )
    assert ids(execution=str(execution_id)) == [], "the container is still there"
    assert sandbox.running() == ()
    return result
