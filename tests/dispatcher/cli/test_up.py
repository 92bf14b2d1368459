import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dispatcher.cli.command import skillfleet, skillfleet_in_background
from tests.signals import until

UP_S = 90.0
Up = Callable[..., Awaitable[subprocess.Popen[bytes]]]


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    """Give a function that starts `up` on a free port and waits until it says that it is ready."""
    started: list[subprocess.Popen[bytes]] = []

    async def start(
        *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        output = tmp_path / f"up-{len(started)}.out"
        process = skillfleet_in_background(
            "up",
            "--port",
            "0",
            "--data-dir",
            str(tmp_path / "data"),
            *arguments,
            output=output,
            env=env,
        )
        started.append(process)

        async def ready() -> bool:
            text = output.read_text()
            assert process.poll() is None, text
            return "Ctrl-C stops everything" in text

        await until(ready, f"`up` is ready: {output}", deadline_s=UP_S)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def credentials(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "data" / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found: dict[str, str] = json.loads(path.read_text())
    return found


def echo(found: dict[str, str], key: str = "apiKey") -> dict[str, Any]:
    """Install and run an echo skill over REST; return the execution."""
    with httpx.Client(base_url=found["url"], trust_env=False, timeout=60) as client:
        installed = client.post(
            "/api/skills/install",
            headers={"Authorization": f"Bearer {found['managementToken']}"},
            json={
                "name": "echo",
                "handlerCode": "echo-handler",
                "apiKeyId": found["apiKeyId"],
                "replace": True,
            },
        )
        assert installed.status_code == 201, installed.text
        answer = client.post(
            "/api/skills/executions",
            headers={"Authorization": f"Bearer {found[key]}"},
            json={"skillName": "echo", "input": {"n": 1}},
        )
        assert answer.status_code == 200, answer.text
        execution: dict[str, Any] = answer.json()["execution"]
        return execution


def descendants_of(data_dir: Path) -> list[str]:
    """Return the programs with this data directory in their arguments or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(data_dir) in text:
            found.append(text.split(b"\0")[0].decode())
    return found


async def all_gone(data_dir: Path) -> None:
    async def none_left() -> bool:
        return not descendants_of(data_dir)

    await until(none_left, "every process of `up` is gone", deadline_s=60)


@pytest.mark.timeout(300)
async def test_the_tour_shows_every_row_as_expected_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    done = skillfleet(
        "up", "--exit-after-tour", "--port", "0", "--data-dir", str(data_dir), deadline_s=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every row is as expected" in done.stdout
    for word in ("file_write", "eval_code", "reverse-text", "refused (422)", "/text", "timeout"):
        assert word in done.stdout
    await all_gone(data_dir)


async def test_a_second_up_keeps_data_and_credentials(up: Up, tmp_path: Path) -> None:
    first = await up("--workers", "2")
    before = credentials(tmp_path)
    execution = echo(before)
    assert execution["output"] == {"n": 1}
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 0
    await all_gone(tmp_path / "data")

    await up()
    after = credentials(tmp_path)
    assert {**after, "url": ""} == {**before, "url": ""}
    with httpx.Client(base_url=after["url"], trust_env=False) as client:
        kept = client.get(
            f"/api/skills/executions/{execution['id']}",
            headers={"Authorization": f"Bearer {before['apiKey']}"},
        )
    assert kept.json()["execution"]["output"] == {"n": 1}


async def test_a_killed_up_takes_its_processes_along_and_the_next_one_starts(
    up: Up, tmp_path: Path
) -> None:
    first = await up()
    echo(credentials(tmp_path))
    refused = skillfleet("up", "--port", "0", "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 4
    assert f"process {first.pid}" in refused.stderr
    first.kill()
    first.wait()
    await up()
    echo(credentials(tmp_path))


async def test_with_services_of_ones_own_nothing_is_embedded(
    up: Up, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    process = await up("--database-url", database_url, "--redis-url", redis_url)
    found = credentials(tmp_path)
    assert (found["databaseUrl"], found["redisUrl"]) == (database_url, redis_url)
    assert not (tmp_path / "data" / "postgres").exists()
    assert not (tmp_path / "data" / "valkey").exists()
    echo(found)
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.timeout(180)
def test_the_tour_leaves_out_what_no_worker_serves(tmp_path: Path) -> None:
    done = skillfleet(
        *("up", "--exit-after-tour", "--port", "0", "--data-dir", str(tmp_path / "data")),
        env={"SKILLS_WORKER_QUEUES": "direct"},
        deadline_s=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" in done.stdout
    assert "SKILLS_WORKER_QUEUES" in done.stdout


def test_a_host_of_another_machine_is_said_before_anything_starts(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "nobody.invalid"):
        refused = skillfleet("up", "--host", host, "--data-dir", str(tmp_path / "data"))
        assert refused.returncode == 2
        assert f"{host} is no address of this machine" in refused.stderr
        assert "--host" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        data = ("--data-dir", str(tmp_path / "data"))
        for refused in (
            skillfleet("up", "--port", str(port), *data),
            skillfleet("up", *data, env={"SKILLS_HTTP_PORT": str(port)}),
        ):
            assert refused.returncode == 4
            assert f"Port {port}" in refused.stderr
            assert "--port" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_an_unknown_setting_and_a_server_that_is_away_are_said(tmp_path: Path) -> None:
    arguments = ("up", "--port", "0", "--data-dir", str(tmp_path / "data"))
    unknown = skillfleet(*arguments, env={"SKILLS_MAX_FILE_BITES": "1"})
    assert unknown.returncode == 2
    assert "SKILLS_MAX_FILE_BYTES" in unknown.stderr
    away = skillfleet(*arguments, "--database-url", f"postgresql://x@/x?host={tmp_path}")
    assert away.returncode == 4
    assert "Postgres" in away.stderr
    assert "Traceback" not in away.stderr


def test_a_room_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    failed = skillfleet(
        "up",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path / "data"),
        env={"SKILLS_HANDLER_MODULES": "no_such_module_of_handlers"},
    )
    assert failed.returncode == 4
    assert "no_such_module_of_handlers" in failed.stderr
    assert "worker-1.log" in failed.stderr
