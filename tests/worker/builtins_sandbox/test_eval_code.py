import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest
from pydantic import ValidationError

from shared.errors import ErrorCode, ExecutionFailed, ExecutionTimedOut
from shared.settings import Settings
from tests.worker.sandbox.containers import docker as command
from tests.worker.sandbox.containers import own_settings, started
from tests.worker.sandbox.contexts import make_context, wire
from worker.builtins.eval_code import EvalCode, EvalCodeResult, eval_code
from worker.handlers import MARK, Handler
from worker.sandbox.run import Sandbox

FULL = {"cpuLimit": 1000}


async def run(sandbox: Sandbox, settings: Settings, seconds: float = 30, **input: Any) -> Any:
    context = make_context(sandbox, settings, seconds=seconds)
    return wire(await eval_code(EvalCode.model_validate(FULL | input), context))


@pytest.mark.docker
async def test_python_answers_with_every_field(sandbox: Sandbox, settings: Settings) -> None:
    output = await run(sandbox, settings, language="python", code="print(6*7)")
    assert 0 < output.pop("durationMs") < 30_000
    assert output == {
        "success": True,
        "language": "python",
        "image": "python:3.12-alpine",
        "exitCode": 0,
        "signal": None,
        "stdout": "42\n",
        "stderr": "",
        "output": "42\n",
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
async def test_javascript_is_the_default_and_node_s_modules_are_at_hand(
    sandbox: Sandbox, settings: Settings
) -> None:
    code = (
        "const p = require('path');\n"
        "console.log(6 * 7, p.basename(__filename), typeof fs.readFileSync, os.EOL.length);"
    )
    output = await run(sandbox, settings, code=code, image="  ")
    assert (output["stdout"], output["language"]) == ("42 main.js function 1\n", "javascript")
    assert output["image"] == "node:22-alpine"
    short = await run(sandbox, settings, code="console.log(1)", language="js")
    assert (short["stdout"], short["language"]) == ("1\n", "js")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("language", "code", "line"),
    [
        ("py", "a = 1\nraise ValueError('no')", 'File "/workspace/main.py", line 2'),
        ("py", "a = 1\nb = (", 'File "/workspace/main.py", line 2'),
        ("js", "let a = 1;\nthrow new Error('no');", "/workspace/main.js:2"),
        ("js", "let a = 1;\nlet b = ;", "/workspace/main.js:2"),
    ],
)
async def test_an_error_shows_the_caller_s_line_and_keeps_the_output(
    sandbox: Sandbox, settings: Settings, language: str, code: str, line: str
) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        await run(sandbox, settings, language=language, code=code)
    assert caught.value.code is ErrorCode.NONZERO_EXIT
    assert caught.value.message == "The program ended with exit code 1"
    assert caught.value.output is not None
    assert line in caught.value.output["stderr"]
    assert "eval_code" not in caught.value.output["stderr"], "no frame of ours"
    assert (caught.value.output["success"], caught.value.output["exitCode"]) == (False, 1)
    assert not caught.value.nothing_ran


@pytest.mark.docker
@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_code_of_a_mebibyte_runs(sandbox: Sandbox, settings: Settings, language: str) -> None:
    show = "print(len(x))" if language == "python" else "console.log(x.length)"
    code = "x = '" + "y" * 1_048_576 + f"'\n{show}"
    assert (await run(sandbox, settings, language=language, code=code))["stdout"] == "1048576\n"


@pytest.mark.docker
@pytest.mark.parametrize(
    "code",
    [
        "print('a')\r\nprint('b')\r\n",
        "\ufeffprint('a')\nprint('b')",
        "print('a')\nprint('b')\n#é😀",
    ],
)
async def test_line_ends_marks_and_wide_characters_do_no_harm(
    sandbox: Sandbox, settings: Settings, code: str
) -> None:
    assert (await run(sandbox, settings, language="py", code=code))["stdout"] == "a\nb\n"


@pytest.mark.docker
@pytest.mark.parametrize("code", ["print('\0", "print('\ud800", "import sys; sys.exit(4)"])
async def test_odd_code_is_the_program_s_own_failure(
    sandbox: Sandbox, settings: Settings, code: str
) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        await run(sandbox, settings, language="py", code=code)
    assert caught.value.code is ErrorCode.NONZERO_EXIT


@pytest.mark.docker
async def test_the_deadline_hands_over_what_was_printed(
    sandbox: Sandbox, settings: Settings
) -> None:
    with pytest.raises(ExecutionTimedOut) as caught:
        await run(sandbox, settings, 1, language="py", code="print('p')\nwhile True: pass")
    output = caught.value.output
    assert output is not None
    assert (output["stdout"], output["timedOut"], output["killed"]) == ("p\n", True, True)
    assert (output["success"], output["oomKilled"]) == (False, False)


@pytest.mark.docker
async def test_out_of_memory_and_floods_have_codes_of_their_own(
    sandbox: Sandbox, settings: Settings
) -> None:
    with pytest.raises(ExecutionFailed) as starved:
        await run(sandbox, settings, language="py", code="x = bytearray(10**9)", memoryLimit=64)
    assert starved.value.code is ErrorCode.OUT_OF_MEMORY
    assert starved.value.output is not None
    assert (starved.value.output["oomKilled"], starved.value.output["killed"]) == (True, False)
    with pytest.raises(ExecutionFailed) as flooded:
        await run(sandbox, settings, language="py", code="while True: print('x' * 100000)")
    assert flooded.value.code is ErrorCode.OUTPUT_LIMIT
    assert flooded.value.output is not None
    assert flooded.value.output["stdoutTruncated"]
    assert flooded.value.output["killed"]


@pytest.mark.docker
async def test_everything_a_call_may_bring_reaches_the_program(
    sandbox: Sandbox, settings: Settings
) -> None:
    code = (
        "import helper, os, sys\n"
        "print(helper.NAME, os.environ['A'], sys.stdin.read(), open('in/b.bin', 'rb').read())\n"
        "open('out.txt', 'w').write('é')\n"
        "open('out.bin', 'wb').write(bytes([0, 255]))\n"
    )
    output = await run(
        sandbox,
        settings,
        language="python",
        code=code,
        stdin="given",
        env={"A": "b c"},
        files={
            "helper.py": "NAME = 'n'",
            "in/b.bin": {"content": "AP8=", "encoding": "base64"},
        },
        outputFiles=["out.txt", "out.bin", "none"],
    )
    assert output["stdout"] == "n b c given b'\\x00\\xff'\n"
    kept = [(f["path"], f["content"], f["encoding"], f["bytesRead"]) for f in output["outputFiles"]]
    assert kept == [
        ("out.txt", "é", "utf8", 2),
        ("out.bin", "AP8=", "base64", 2),
        ("none", None, "utf8", 0),
    ]
    assert output["outputFiles"][2]["error"] == "The program left no such file"


@pytest.mark.docker
async def test_network_that_was_asked_for_in_vain_is_told(
    sandbox: Sandbox, settings: Settings
) -> None:
    output = await run(sandbox, settings, language="py", code="print(1)", networkEnabled=True)
    assert output["networkEnabled"] is False
    assert "SKILLS_SANDBOX_NETWORK_ENABLED" in output["note"]


@pytest.mark.docker
async def test_an_image_that_can_run_nothing_is_told(docker: None, tmp_path: Path) -> None:
    image = f"skillfleet-test-{uuid4().hex}:empty"
    settings = own_settings(allowed={"sandbox_images": (image,)})
    (tmp_path / "empty").mkdir()
    tar = subprocess.run(["tar", "-C", tmp_path, "-c", "empty"], capture_output=True, check=True)
    command("import", "-", image, input=tar.stdout)
    try:
        async with started(settings) as sandbox:
            with pytest.raises(ExecutionFailed, match="Nothing can run in the image") as caught:
                await run(sandbox, settings, code="1", image=image)
        assert caught.value.code is ErrorCode.IMAGE_UNAVAILABLE
    finally:
        command("rmi", image)


@pytest.mark.docker
async def test_an_image_off_the_list_is_refused(sandbox: Sandbox, settings: Settings) -> None:
    with pytest.raises(ExecutionFailed, match=r"^Sandbox image is not allowed: evil:1$") as caught:
        await run(sandbox, settings, code="1", image="evil:1")
    assert caught.value.code is ErrorCode.IMAGE_NOT_ALLOWED


@pytest.mark.parametrize(
    ("input", "code"),
    [
        ({"files": {"../x": ""}}, ErrorCode.PATH_REJECTED),
        ({"files": {"/x": ""}}, ErrorCode.PATH_REJECTED),
        ({"files": {"a//b": ""}}, ErrorCode.PATH_REJECTED),
        ({"files": {"a/./b": ""}}, ErrorCode.PATH_REJECTED),
        ({"files": {"a/": ""}}, ErrorCode.PATH_REJECTED),
        ({"files": {"é" * 200: ""}}, ErrorCode.PATH_REJECTED),
        ({"outputFiles": ["/etc/passwd"]}, ErrorCode.PATH_REJECTED),
        ({"outputFiles": [".."]}, ErrorCode.PATH_REJECTED),
        ({"files": {"main.py": ""}}, ErrorCode.INVALID_INPUT),
        ({"files": {"main.py/x": ""}}, ErrorCode.INVALID_INPUT),
        ({"files": {"a": "", "a/b": ""}}, ErrorCode.INVALID_INPUT),
        ({"files": {"a": {"content": "no base64", "encoding": "base64"}}}, ErrorCode.INVALID_INPUT),
        ({"cpuLimit": 1001}, ErrorCode.INVALID_INPUT),
        ({"memoryLimit": 1025}, ErrorCode.INVALID_INPUT),
    ],
)
async def test_what_can_t_be_done_is_refused_before_any_container(
    settings: Settings, input: dict[str, Any], code: ErrorCode
) -> None:
    sandbox = Sandbox(settings, worker_id="w")
    with pytest.raises(ExecutionFailed) as caught:
        await run(sandbox, settings, language="python", code="1", **input)
    assert caught.value.code is code
    assert sandbox.state()["engine"] == "unknown", "no engine was asked"


GOOD: list[dict[str, Any]] = [
    {"code": ""},
    {"code": "1", "language": "py", "timeoutMs": 1, "cpuLimit": 10, "memoryLimit": 6},
    {"code": "1", "timeoutMs": 999_999_999},
    {
        "code": "1",
        "files": {"a": "b", "c": {"content": ""}},
        "outputFiles": ["x"],
        "env": {"A": ""},
    },
]
BAD: list[dict[str, Any]] = [
    {},
    {"code": 1},
    {"code": "1", "language": "ruby"},
    {"code": "1", "unknown": 1},
    {"code": "1", "timeoutMs": 0},
    {"code": "1", "timeoutMs": 1.5},
    {"code": "1", "cpuLimit": 0},
    {"code": "1", "memoryLimit": 5},
    {"code": "1", "env": {"A B": ""}},
    {"code": "1", "env": {"A": "\0"}},
    {"code": "1", "files": {"": ""}},
    {"code": "1", "files": {str(n): "" for n in range(65)}},
    {"code": "1", "files": {"a": {"content": "", "mode": 7}}},
    {"code": "1", "outputFiles": ["x\0"]},
    {"code": "1", "networkEnabled": "yes please"},
]


@pytest.mark.parametrize("input", GOOD)
def test_the_schema_and_the_model_take_what_is_good(input: dict[str, Any]) -> None:
    assert jsonschema_rs.is_valid(EvalCode.model_json_schema(), input)
    EvalCode.model_validate(input)


@pytest.mark.parametrize("input", BAD)
def test_the_schema_and_the_model_refuse_what_is_not(input: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(EvalCode.model_json_schema(), input)
    with pytest.raises(ValidationError):
        EvalCode.model_validate(input)


def test_a_time_limit_above_the_maximum_is_clamped() -> None:
    assert EvalCode.model_validate({"code": "", "timeoutMs": 999_999}).timeout_ms == 60_000


def test_the_handler_is_announced_with_its_defaults(settings: Settings) -> None:
    handler: Handler = getattr(eval_code, MARK)
    assert (handler.name, handler.queue, handler.policy) == ("eval_code", "sandbox", "hybrid")
    assert (handler.timeout_input, handler.max_timeout_ms) == ("timeoutMs", 60_000)
    assert callable(handler.timeout_ms)
    assert handler.timeout_ms(settings) == 10_000
    assert (handler.keeps_deadline, handler.builtin) == (True, True)
    assert (handler.input_model, handler.output_model) == (EvalCode, EvalCodeResult)
    assert "fresh container" in handler.description


@pytest.mark.parametrize(
    ("input", "safe"),
    [
        ({"code": "1"}, True),
        ({"code": "1", "networkEnabled": False}, True),
        ({"code": "1", "networkEnabled": True}, False),
    ],
)
def test_only_calls_without_network_may_run_twice(input: dict[str, Any], *, safe: bool) -> None:
    schema = getattr(eval_code, MARK).idempotent
    assert jsonschema_rs.is_valid(schema, input) is safe
