"""Programs of every kind in real containers; each helper call also checks that none is left."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from tests.signals import until
from tests.worker.sandbox.containers import (
    ALPINE,
    FAST,
    PYTHON,
    container_of,
    docker,
    ids,
    own_settings,
    playing,
    program,
    python,
    sh,
    started,
)
from worker.sandbox.outcome import Cause
from worker.sandbox.run import Sandbox
from worker.sandbox.spec import SandboxConfig

pytestmark = pytest.mark.docker

CAP = 100_000
MIB = 1024 * 1024


async def test_a_program_s_output_and_exit_code_come_back(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "echo out; echo err >&2; exit 7")
    assert (result.cause, result.exit_code, result.signal) == (Cause.EXITED, 7, None)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    flags = (result.killed, result.timed_out, result.oom_killed, result.network_enabled)
    assert flags == (False, False, False, False)


async def test_a_running_container_has_every_flag(sandbox: Sandbox) -> None:
    execution = uuid4()
    deadline = asyncio.get_running_loop().time() + 60
    run = asyncio.create_task(
        sandbox.run(ALPINE, ("sleep", "60"), {"A": "b"}, execution_id=execution, deadline=deadline)
    )
    seen = await container_of(execution)
    assert sandbox.running() == (execution,)
    await sandbox.kill(execution)
    assert (await run).cause is Cause.KILLED

    host, config = seen["HostConfig"], seen["Config"]
    assert host["NetworkMode"] == "none"
    assert list(seen["NetworkSettings"]["Networks"]) in ([], ["none"])
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["Privileged"] is False
    assert [o for o in host["SecurityOpt"] if "no-new-privileges" in o] == host["SecurityOpt"]
    assert host["PidsLimit"] == 100
    assert host["NanoCpus"] == 100_000_000
    assert host["Memory"] == host["MemorySwap"] == 256 * MIB
    tmpfs = "rw,noexec,nosuid,size=64m,uid=65534,gid=65534"
    assert host["Tmpfs"] == {"/tmp": tmpfs, "/workspace": tmpfs}
    assert host["ReadonlyRootfs"] is True
    assert host["Init"] is True
    assert host["LogConfig"]["Type"] == "none"
    assert not host["Binds"]
    assert [mount for mount in seen["Mounts"] if mount["Type"] != "tmpfs"] == []
    assert host["IpcMode"] == "private"
    assert host["PidMode"] == ""
    assert host["RestartPolicy"]["Name"] == "no"
    assert config["User"] == "65534:65534"
    assert config["WorkingDir"] == "/workspace"
    assert config["Labels"]["skillfleet.execution"] == str(execution)
    assert config["Labels"]["skillfleet.role"] == "run"
    names = {line.split("=")[0] for line in config["Env"]}
    assert "A" not in names, "a caller's variables travel with the program"
    assert not any(name.startswith("SKILLS_") for name in names)


async def test_inside_nothing_of_it_can_be_undone(sandbox: Sandbox) -> None:
    result = await sh(
        sandbox,
        "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; id -u; id -g; pwd;"
        "ls /sys/class/net;"
        "for f in / /etc /dev /usr/bin; do touch $f/x 2>/dev/null && echo wrote $f; done;"
        "for f in /tmp /workspace; do"
        " printf '#!/bin/sh\\necho ran' >$f/x; chmod 755 $f/x; $f/x 2>/dev/null; echo $?;"
        " sh $f/x; done; ulimit -c; env | grep -c TINI",
    )
    lines = result.stdout.split("\n")
    zeros = "0" * 16
    assert lines[:4] == [f"CapBnd:\t{zeros}", "NoNewPrivs:\t1", "Seccomp:\t2", "65534"] or (
        lines[:5]
        == [f"CapEff:\t{zeros}", f"CapBnd:\t{zeros}", "NoNewPrivs:\t1", "Seccomp:\t2", "65534"]
    )
    assert lines[5:] == ["65534", "/workspace", "lo", "126", "ran", "126", "ran", "0", "0", ""]


async def test_a_program_that_exits_at_once_never_hangs_or_loses_its_code(sandbox: Sandbox) -> None:
    async def one(number: int) -> tuple[int | None, str, str]:
        result = await sandbox.run(
            ALPINE,
            ("sh", "-c", f"echo {number}; echo e{number} >&2; exit {number}"),
            {},
            FAST,
            execution_id=uuid4(),
            deadline=asyncio.get_running_loop().time() + 60,
        )
        return result.exit_code, result.stdout, result.stderr

    found = await asyncio.gather(*(one(number) for number in range(60)))
    assert found == [(number, f"{number}\n", f"e{number}\n") for number in range(60)]


async def test_partial_output_is_kept_at_the_deadline(sandbox: Sandbox) -> None:
    result = await python(sandbox, "print('p')\nwhile True: pass", seconds=1)
    assert (result.cause, result.stdout) == (Cause.TIMEOUT, "p\n")
    assert (result.killed, result.timed_out, result.oom_killed) == (True, True, False)
    assert (result.exit_code, result.signal) == (143, "SIGTERM")
    assert result.duration_ms < 2500


async def test_a_program_that_answers_sigterm_with_success_is_still_late(sandbox: Sandbox) -> None:
    code = (
        "import signal, sys\n"
        "def bye(*_): print('bye'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "print('hi')\n"
        "while True: signal.pause()\n"
    )
    result = await python(sandbox, code, seconds=1)
    assert (result.cause, result.exit_code, result.stdout) == (Cause.TIMEOUT, 0, "hi\nbye\n")


async def test_a_program_that_ignores_sigterm_is_killed(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "trap '' TERM; echo here; sleep 60; sleep 60", seconds=1)
    assert (result.cause, result.stdout) == (Cause.TIMEOUT, "here\n")
    assert (result.exit_code, result.signal) == (137, "SIGKILL")
    assert 1400 < result.duration_ms < 3500, "half a second of grace lies between"


async def test_a_program_that_stops_itself_and_its_parents_is_killed(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "echo x; kill -STOP $PPID; kill -STOP $$", seconds=1)
    assert (result.cause, result.stdout) == (Cause.TIMEOUT, "x\n")


async def test_children_left_behind_end_with_the_program(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "(setsid sleep 300 &); nohup sleep 300 & echo done")
    assert (result.cause, result.exit_code, result.stdout) == (Cause.EXITED, 0, "done\n")
    assert result.duration_ms < 10_000


async def test_a_program_that_closes_its_output_is_waited_for(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "exec >&- 2>&-; sleep 1; exit 5")
    assert (result.cause, result.exit_code) == (Cause.EXITED, 5)
    assert result.duration_ms > 900


async def test_out_of_memory_is_told_apart(sandbox: Sandbox) -> None:
    result = await python(sandbox, "print('so far')\nx = bytearray(10**9)\nprint(len(x))")
    assert (result.cause, result.oom_killed) == (Cause.OUT_OF_MEMORY, True)
    assert (result.killed, result.timed_out) == (False, False)
    assert result.stdout == "so far\n"


async def test_a_child_that_ran_out_of_memory_is_told_beside_a_success(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "sh -c 'a=x; while :; do a=$a$a; done'; echo went on; exit 0")
    assert (result.cause, result.exit_code, result.oom_killed) == (Cause.EXITED, 0, True)
    assert result.stdout == "went on\n"


async def test_memory_filled_through_files_is_out_of_memory_or_disk(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "head -c 100000000 /dev/zero >/tmp/x; echo $?; wc -c </tmp/x")
    assert result.stdout.split() == ["1", str(64 * MIB)]


async def test_a_kill_by_itself_is_a_signal_and_an_exit_code_137_is_none(sandbox: Sandbox) -> None:
    killed = await python(sandbox, "import os\nos.kill(os.getpid(), 9)\nprint('still here')")
    assert (killed.cause, killed.exit_code, killed.signal) == (Cause.EXITED, 137, "SIGKILL")
    assert (killed.killed, killed.oom_killed, killed.stdout) == (False, False, "")
    exited = await sh(sandbox, "exit 137")
    assert (exited.cause, exited.exit_code, exited.signal) == (Cause.EXITED, 137, None)


async def test_a_kill_of_all_it_can_reach_is_an_end_and_no_success(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "echo x; kill -9 -1; kill -9 $PPID; kill -9 $$")
    assert (result.cause, result.killed, result.stdout) == (Cause.KILLED, False, "x\n")


async def test_a_kill_from_outside_is_told_apart_from_ours(sandbox: Sandbox) -> None:
    for command in (("kill",), ("rm", "-f")):
        execution = uuid4()
        run = asyncio.create_task(sh(sandbox, "echo x; sleep 60", execution_id=execution))
        seen = await playing(execution, "sleep 60")
        docker(*command, seen["Id"])
        result = await run
        assert (result.cause, result.killed, result.timed_out) == (Cause.KILLED, False, False)


async def test_our_kill_is_told_as_ours(sandbox: Sandbox) -> None:
    execution = uuid4()
    run = asyncio.create_task(sh(sandbox, "echo x; sleep 60", execution_id=execution))
    await container_of(execution)
    assert not await sandbox.kill(uuid4())
    assert await sandbox.kill(execution)
    result = await run
    assert (result.cause, result.killed, result.timed_out) == (Cause.KILLED, True, False)


BOMBS = [
    ("python3", "-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
    ("sh", "-c", "f() { f | f & }; f; wait; sleep 60"),
]


@pytest.mark.parametrize("command", BOMBS, ids=["python", "sh"])
async def test_a_fork_bomb_stays_in_its_box(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    bomb = asyncio.create_task(program(sandbox, PYTHON, command, 2, SandboxConfig(), None))
    neighbour = await sandbox.run(ALPINE, ("echo", "fine"), {}, FAST, execution_id=uuid4())
    assert neighbour.stdout == "fine\n"
    result = await bomb
    assert result.cause in (Cause.TIMEOUT, Cause.EXITED, Cause.KILLED, Cause.OUT_OF_MEMORY)
    assert result.duration_ms < 8000


async def test_a_flood_is_cut_and_killed_without_filling_the_worker(sandbox: Sandbox) -> None:
    before = resident_mib()
    result = await sh(sandbox, "head -c 200000000 /dev/zero | tr '\\0' x; echo end", seconds=60)
    assert (result.cause, result.killed, result.timed_out) == (Cause.OUTPUT_LIMIT, True, False)
    assert (result.stdout, result.stdout_truncated) == ("x" * CAP, True)
    assert not result.stderr_truncated
    assert resident_mib() - before < 64


async def test_output_somewhat_beyond_the_cap_is_cut_and_drained(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "head -c 3000000 /dev/zero | tr '\\0' y >&2; echo end")
    assert (result.cause, result.exit_code, result.stdout) == (Cause.EXITED, 0, "end\n")
    assert (result.stderr, result.stderr_truncated) == ("y" * CAP, True)
    assert not result.stdout_truncated


async def test_what_is_not_utf_8_does_no_harm(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "printf '\\377\\376\\200a\\000b\\033[1m'")
    assert result.stdout == "\ufffd\ufffd\ufffda\0b\033[1m"


async def test_a_forged_ending_is_output(sandbox: Sandbox) -> None:
    forged = "\x04" + "0" * 32 + "\x04exit 0 0 \nend\n"
    result = await python(sandbox, f"import sys\nprint({forged!r}, end='')\nsys.exit(3)")
    assert (result.cause, result.exit_code, result.stdout) == (Cause.EXITED, 3, forged)


async def test_two_calls_share_nothing(sandbox: Sandbox) -> None:
    look = "ls -A /tmp /workspace /dev/shm; hostname; ls /proc | grep -c '^[0-9]'"
    first = await sh(sandbox, "touch /tmp/a /workspace/b /dev/shm/c; sleep 60 &" + look)
    second = await sh(sandbox, look)
    assert {"a", "b", "c"} <= set(first.stdout.split())
    assert not {"a", "b", "c"} & set(second.stdout.split())


async def test_without_network_there_is_only_loopback(sandbox: Sandbox) -> None:
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname(), 2)\n"
        "print('loopback')\n"
        "try: socket.create_connection(('192.0.2.1', 80), 2)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    asked = SandboxConfig(cpuLimit=1000, networkEnabled=True)
    result = await python(sandbox, code, config=asked)
    assert result.stdout == "loopback\nNetwork is unreachable\n"
    assert result.network_enabled is False, "the master gate is shut"


async def test_the_cpu_limit_holds(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time())",
        config=SandboxConfig(cpuLimit=100),
    )
    assert float(result.stdout) < 0.9


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


async def test_the_deadline_covers_waiting_for_a_place(docker: None) -> None:
    async with started(own_settings(sandbox={"concurrency": 1})) as sandbox:
        execution = uuid4()
        first = asyncio.create_task(sandbox.run(ALPINE, ("sleep", "60"), execution_id=execution))
        await container_of(execution)
        now = asyncio.get_running_loop().time()
        second = await sandbox.run(ALPINE, ("true",), execution_id=uuid4(), deadline=now + 0.2)
        assert (second.cause, second.exit_code) == (Cause.TIMEOUT, None)
        assert second.timed_out
        await sandbox.kill_all()
        assert (await first).cause is Cause.KILLED


async def test_close_kills_and_removes_what_runs(docker: None) -> None:
    settings = own_settings()
    async with started(settings) as sandbox:
        executions = [uuid4() for _ in range(3)]
        runs = [
            asyncio.create_task(sandbox.run(ALPINE, ("sleep", "60"), execution_id=execution))
            for execution in executions
        ]
        for execution in executions:
            await container_of(execution)
        await sandbox.close()
        assert sandbox.running() == ()
        assert {(await run).cause for run in runs} == {Cause.KILLED}


async def test_a_cancelled_caller_leaves_no_container(sandbox: Sandbox) -> None:
    for step in range(24):
        execution = uuid4()
        run = asyncio.create_task(
            sandbox.run(
                ALPINE, ("sh", "-c", "while :; do echo x; done & sleep 60"), execution_id=execution
            )
        )
        await asyncio.wait({run}, timeout=step * 0.015)
        run.cancel()
        await asyncio.wait({run})
        assert run.cancelled()

        async def gone(execution: object = execution) -> bool:
            return not await asyncio.to_thread(ids, execution=str(execution))

        await until(gone, "the container is removed")
        assert sandbox.running() == ()
