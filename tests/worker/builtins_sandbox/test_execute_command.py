from typing import Any

import jsonschema_rs
import pytest
from pydantic import ValidationError

from shared.errors import ErrorCode, ExecutionFailed
from shared.settings import Settings
from tests.worker.sandbox.contexts import make_context, wire
from worker.builtins.execute_command import ExecuteCommand, execute_command
from worker.handlers import MARK, Handler
from worker.sandbox.run import Sandbox


async def run(sandbox: Sandbox, settings: Settings, **input: Any) -> Any:
    model = ExecuteCommand.model_validate({"cpuLimit": 1000} | input)
    return wire(await execute_command(model, make_context(sandbox, settings)))


@pytest.mark.docker
async def test_a_command_answers_with_every_field(sandbox: Sandbox, settings: Settings) -> None:
    output = await run(sandbox, settings, command="echo", args=["a b", 1, 2.0, 1.5, True])
    assert 0 < output.pop("durationMs") < 30_000
    assert output == {
        "success": True,
        "command": "echo",
        "args": ["a b", "1", "2", "1.5", "true"],
        "image": "alpine:3.20",
        "exitCode": 0,
        "signal": None,
        "stdout": "a b 1 2 1.5 true\n",
        "stderr": "",
        "output": "a b 1 2 1.5 true\n",
        "truncated": False,
        "stdoutTruncated": False,
        "stderrTruncated": False,
        "killed": False,
        "timedOut": False,
        "oomKilled": False,
        "networkEnabled": False,
        "outputFiles": [],
        "note": None,
    }


@pytest.mark.docker
async def test_there_is_no_shell_unless_it_is_asked_for(
    sandbox: Sandbox, settings: Settings
) -> None:
    plain = await run(sandbox, settings, command="echo", args=["$HOME; id | cat"])
    assert plain["stdout"] == "$HOME; id | cat\n"
    shell = await run(sandbox, settings, command="sh", args=["-c", "echo $HOME | cat"])
    assert shell["stdout"] == "/workspace\n"


@pytest.mark.docker
async def test_a_failed_command_is_an_error_with_its_output(
    sandbox: Sandbox, settings: Settings
) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        await run(sandbox, settings, command="sh", args=["-c", "echo x; echo y >&2; exit 9"])
    assert caught.value.code is ErrorCode.NONZERO_EXIT
    output = caught.value.output
    assert output is not None
    assert (output["exitCode"], output["stdout"], output["stderr"]) == (9, "x\n", "y\n")
    assert output["args"] == ["-c", "echo x; echo y >&2; exit 9"]


@pytest.mark.docker
async def test_a_signal_is_named(sandbox: Sandbox, settings: Settings) -> None:
    with pytest.raises(ExecutionFailed, match=r"exit code 139 \(signal SIGSEGV\)") as caught:
        await run(sandbox, settings, command="sh", args=["-c", "kill -SEGV $$"])
    assert caught.value.code is ErrorCode.NONZERO_EXIT
    assert caught.value.output is not None
    assert caught.value.output["signal"] == "SIGSEGV"


@pytest.mark.parametrize(
    "input",
    [
        {},
        {"command": ""},
        {"command": "a\0"},
        {"command": "a", "args": "b"},
        {"command": "a", "args": [None]},
        {"command": "a", "args": [["b"]]},
        {"command": "a", "args": ["b\0"]},
        {"command": "a", "args": ["x"] * 1025},
        {"command": "a", "code": "b"},
    ],
)
def test_the_schema_and_the_model_refuse_what_is_not_a_command(input: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(ExecuteCommand.model_json_schema(), input)
    with pytest.raises(ValidationError):
        ExecuteCommand.model_validate(input)


def test_only_an_explicit_call_may_run_it() -> None:
    handler: Handler = getattr(execute_command, MARK)
    assert (handler.name, handler.queue, handler.policy) == ("execute_command", "sandbox", "manual")
    assert handler.keeps_deadline
