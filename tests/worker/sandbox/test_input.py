"""What goes into a program and what comes out of it, in real containers."""

import pytest

from tests.worker.sandbox.containers import (
    ALPINE,
    FAST,
    own_settings,
    program,
    python,
    sh,
    started,
)
from worker.sandbox.outcome import Cause
from worker.sandbox.run import Sandbox

pytestmark = pytest.mark.docker

CAP = 100_000
MIB = 1024 * 1024


async def test_stdin_is_exactly_what_was_given(sandbox: Sandbox) -> None:
    given = bytes(range(256)) * 2000
    result = await sh(sandbox, "cat >in; cat; echo $?", stdin=given, output_files=["in"])
    assert result.files["in"].content == given
    assert result.stdout == "0\n"


async def test_without_stdin_a_reading_program_meets_its_end_at_once(sandbox: Sandbox) -> None:
    result = await sh(sandbox, "read x; echo $?; cat; echo $?")
    assert result.stdout == "1\n0\n"
    assert result.duration_ms < 10_000


async def test_files_go_in_and_come_out(sandbox: Sandbox) -> None:
    result = await sh(
        sandbox,
        "cat a/b.txt; cp a/b.txt 'c d'; mkdir dir; ln -s nowhere broken; pwd; ls -A",
        files={"a/b.txt": b"x\0y'\n", "-n": b"", "ü $(id)": b"1"},
        output_files=["c d", "-n", "ü $(id)", "dir", "broken", "missing"],
    )
    assert result.stdout.startswith("x\0y'\n/workspace\n")
    found = {path: (file.found, file.content) for path, file in result.files.items()}
    assert found == {
        "c d": ("file", b"x\0y'\n"),
        "-n": ("file", b""),
        "ü $(id)": ("file", b"1"),
        "dir": ("unreadable", b""),
        "broken": ("missing", b""),
        "missing": ("missing", b""),
    }


async def test_files_that_come_out_are_bounded_together(docker: None) -> None:
    async with started(own_settings(max={"output_bytes": 4000})) as sandbox:
        result = await sh(
            sandbox,
            "head -c 1500 /dev/zero >a; head -c 1500 /dev/zero >b; head -c 500 /dev/zero >c",
            output_files=["a", "b", "c"],
        )
        assert [(f.found, f.size) for f in result.files.values()] == [
            ("file", 1500),
            ("large", 1500),
            ("file", 500),
        ]


async def test_files_come_out_of_a_failed_program_too(sandbox: Sandbox) -> None:
    result = await sh(
        sandbox, "echo 1 >r; (while :; do echo noise; done) & exit 3", output_files=["r"]
    )
    assert (result.exit_code, result.files["r"].content) == (3, b"1\n")


async def test_variables_reach_the_program_as_they_are(sandbox: Sandbox) -> None:
    env = {"A": "it's $HOME `id`\n", "PATH": "/nowhere:/usr/bin:/bin", "UID": "7"}
    result = await sh(sandbox, 'printf %s "$A"; echo "$PATH"; env | grep -E "^UID"', env=env)
    assert result.stdout == "it's $HOME `id`\n/nowhere:/usr/bin:/bin\nUID=7\n"


async def test_arguments_are_not_read_by_any_shell(sandbox: Sandbox) -> None:
    hostile = "$(id) `id` ' \" \\ ; & \n -n"
    command = ("printf", "%s|", hostile, "", "-x")
    result = await program(sandbox, ALPINE, command, 30, FAST, None)
    assert result.stdout == f"{hostile}||-x|"


async def test_a_missing_program_is_an_exit_code(sandbox: Sandbox) -> None:
    result = await program(sandbox, ALPINE, ("no-such-program",), 30, FAST, None)
    assert (result.cause, result.exit_code) == (Cause.EXITED, 127)
    assert "no-such-program" in result.stderr


async def test_code_of_a_mebibyte_runs(sandbox: Sandbox) -> None:
    code = "x = '" + "y" * MIB + "'\nprint(len(x))"
    assert (await python(sandbox, code)).stdout == f"{MIB}\n"
