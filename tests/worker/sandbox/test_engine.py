"""The engine away, lost, back again, behind TLS; and answers that never came."""

import asyncio
import shutil
import time
from pathlib import Path
from uuid import uuid4

import pytest

from shared.errors import EngineError, ErrorCode, ExecutionFailed
from tests.requires import missing
from tests.signals import until
from tests.worker.sandbox.containers import (
    ALPINE,
    FAST,
    container_of,
    ids,
    own_settings,
    playing,
    sh,
    started,
)
from tests.worker.sandbox.proxy import Proxy, certificates, proxied, server_context
from worker.sandbox.engine import Engine, endpoint, require_seccomp
from worker.sandbox.outcome import Cause
from worker.sandbox.run import Sandbox
from worker.sandbox.spec import fleet_of


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose name is short enough for a socket's."""
    return tmp_path_factory.mktemp("s")


def test_docker_host_wins_over_the_usual_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    assert endpoint() == "tcp://192.0.2.1:2376"
    monkeypatch.delenv("DOCKER_HOST")
    assert endpoint().startswith("unix:///")


async def test_an_odd_docker_host_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ftp://x")
    engine = Engine()
    with pytest.raises(EngineError, match="use unix://PATH or tcp://HOST:PORT"):
        await engine.connect()
    assert engine.state == "unavailable"
    await engine.close()


@pytest.mark.parametrize("options", [None, [], ["name=seccomp,profile=unconfined"]])
def test_an_engine_without_seccomp_is_refused(options: list[str] | None) -> None:
    with pytest.raises(EngineError, match="without a seccomp profile"):
        require_seccomp({"SecurityOptions": options})
    require_seccomp({"SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"]})


async def test_without_an_engine_a_call_fails_at_once_and_says_what_to_do(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{short}/none.sock")
    sandbox = Sandbox(own_settings(), worker_id="w")
    await sandbox.start()
    before = time.monotonic()
    with pytest.raises(ExecutionFailed, match="Start Docker, let") as caught:
        await sandbox.run(ALPINE, ("true",), execution_id=uuid4())
    assert time.monotonic() - before < 2
    assert caught.value.code is ErrorCode.SANDBOX_UNAVAILABLE
    assert caught.value.nothing_ran
    assert str(short) not in caught.value.message, "no paths of the host for callers"
    assert sandbox.state()["engine"] == "unavailable"
    assert await sandbox.sweep(()) == 0
    await sandbox.close()


@pytest.mark.docker
async def test_an_engine_that_comes_is_found_without_a_restart(
    docker: None, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{short}/e.sock")
    async with started(own_settings()) as sandbox:
        with pytest.raises(ExecutionFailed):
            await sandbox.run(ALPINE, ("true",), execution_id=uuid4())
        async with proxied(short / "e.sock"):
            assert (await sh(sandbox, "echo back")).stdout == "back\n"
            assert sandbox.state()["engine"] == "ready"


@pytest.mark.docker
async def test_an_engine_lost_in_the_middle_is_never_a_success(
    docker: None, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(short / "e.sock") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.host)
        async with started(own_settings()) as sandbox:
            execution = uuid4()
            run = asyncio.create_task(
                sandbox.run(
                    ALPINE, ("sh", "-c", "echo x; sleep 60"), {}, FAST, execution_id=execution
                )
            )
            await playing(execution, "sleep 60")
            await proxy.cut()
            result = await run
            assert (result.cause, result.exit_code) == (Cause.ENGINE_LOST, None)
            assert not result.killed
            with pytest.raises(ExecutionFailed) as caught:
                await sandbox.run(ALPINE, ("true",), execution_id=uuid4())
            assert caught.value.code is ErrorCode.SANDBOX_UNAVAILABLE

            await proxy.listen_unix(short / "e.sock")
            assert (await sh(sandbox, "echo back")).stdout == "back\n"
            assert ids(execution=str(execution)), "its removal was not possible"
            assert await sandbox.sweep(set()) == 1
            assert not ids(execution=str(execution))


@pytest.mark.docker
async def test_a_create_whose_answer_was_lost_leaves_no_container(
    docker: None, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(short / "e.sock") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.host)
        settings = own_settings()
        async with started(settings) as sandbox:
            await sh(sandbox, "true")
            proxy.loses_create_answers = True
            with pytest.raises(ExecutionFailed) as caught:
                await sandbox.run(ALPINE, ("true",), execution_id=uuid4())
            assert caught.value.code is ErrorCode.SANDBOX_UNAVAILABLE
            assert sandbox.running() == ()
        # started() has asserted that the fleet has no container left
        assert ids(fleet=fleet_of(settings.database.url)) == []


@pytest.mark.docker
async def test_an_engine_behind_tls_is_used_with_both_certificates(
    docker: None, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        missing("openssl", "there is no openssl command to make certificates with")
    certificates(short)
    proxy = Proxy("/var/run/docker.sock")
    await proxy.listen_tls(server_context(short))
    monkeypatch.setenv("DOCKER_HOST", proxy.host)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(short))
    try:
        settings = own_settings()
        sandbox = Sandbox(settings, worker_id="tls")
        result = await sandbox.run(
            ALPINE,
            ("sh", "-c", "cat; exit 3"),
            {},
            FAST,
            execution_id=uuid4(),
            stdin=b"x" * 200_000,
        )
        assert (result.exit_code, result.stdout) == (3, "x" * 100_000)
        await sandbox.close()
        monkeypatch.setenv("DOCKER_CERT_PATH", str(short / "nothing"))
        other = Sandbox(settings, worker_id="tls")
        with pytest.raises(ExecutionFailed, match="no usable certificates"):
            await other.run(ALPINE, ("true",), execution_id=uuid4())
        await other.close()
    finally:
        await proxy.cut()
        monkeypatch.undo()
    assert ids(fleet=fleet_of(settings.database.url)) == []


@pytest.mark.docker
async def test_the_sweep_takes_a_dead_worker_s_containers_and_no_other(docker: None) -> None:
    settings = own_settings()
    async with started(settings) as sandbox:
        other = Sandbox(settings, worker_id="other")
        execution = uuid4()
        run = asyncio.create_task(
            other.run(ALPINE, ("sleep", "60"), {}, FAST, execution_id=execution)
        )
        await container_of(execution)
        assert await sandbox.sweep({"other"}) == 0
        assert ids(execution=str(execution))
        assert await sandbox.sweep(set()) == 1
        assert ids(execution=str(execution)) == []
        assert (await run).cause is Cause.KILLED
        await other.close()


@pytest.mark.docker
async def test_two_fleets_on_one_engine_leave_each_other_alone(docker: None) -> None:
    async with started(own_settings()) as mine, started(own_settings()) as theirs:
        execution = uuid4()
        run = asyncio.create_task(theirs.run(ALPINE, ("sleep", "60"), execution_id=execution))
        await container_of(execution)
        assert await mine.sweep(set()) == 0
        await theirs.kill_all()
        assert (await run).cause is Cause.KILLED


@pytest.mark.docker
async def test_the_upkeep_tells_what_is_there(sandbox: Sandbox) -> None:
    async def ready() -> bool:
        state = sandbox.state()
        return state["engine"] == "ready" and set(state["images"].values()) == {"present"}

    await until(ready, "engine ready, every default image present")
