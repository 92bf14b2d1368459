import asyncio
import base64
import os
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel

from shared.errors import ErrorCode, ExecutionFailed, InvalidInput
from shared.schemas import check_schema, compiled
from shared.settings import Settings
from tests.casefiles import each_case
from worker.builtins.file_read import file_read
from worker.builtins.file_write import FileWrite, file_write
from worker.context import Context
from worker.handlers import MARK, Handler
from worker.workspace import Workspace

LIMIT = 1_048_576


def surroundings(workspace: Workspace) -> Context:
    """Make what a handler is given; the file skills use nothing but the workspace."""
    return Context(
        execution_id=UUID(int=0),
        attempt=1,
        max_retries=0,
        api_key_id="key-1",
        caller="key-1",
        session_id=None,
        provider=None,
        model=None,
        deadline=0.0,
        skill="s",
        settings=Settings(),
        workspace=workspace,
        sandbox=cast("Any", None),
    )


def declared(function: Any) -> Handler:
    found = getattr(function, MARK)
    assert isinstance(found, Handler)
    return found


async def call(function: Any, workspace: Workspace, input: dict[str, Any]) -> dict[str, Any]:
    """Run a built-in as an execution does: schema, model, handler, output as on the wire."""
    model = declared(function).input_model
    assert model is not None
    compiled(model.model_json_schema()).check(input)
    async with asyncio.timeout(10):
        output = await function(model.model_validate(input), surroundings(workspace))
    assert isinstance(output, BaseModel)
    return output.model_dump(by_alias=True)


async def refusal(function: Any, workspace: Workspace, input: dict[str, Any]) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await call(function, workspace, input)
    return caught.value


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "data", "key-1", LIMIT)


# --- the case file


class Ground:
    """A workspace with what lies beside it, and the check that holds after every case."""

    def __init__(self, data_dir: Path) -> None:
        self.workspace = Workspace(data_dir, "key-1", LIMIT)
        root = self.workspace.path
        self.outside = root.with_name("outside")
        self.sibling = root.with_name(root.name + "-evil")
        for folder, name, text in (
            (self.outside, "secret.txt", "TOP"),
            (self.sibling, "x.txt", "X"),
        ):
            folder.mkdir(parents=True)
            (folder / name).write_text(text)
        self.before = self.state()

    def state(self) -> dict[str, str]:
        return {
            f"{folder.name}/{file.name}": file.read_text()
            for folder in (self.outside, self.sibling)
            for file in folder.iterdir()
        }

    def filled(self, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        for name, value in {
            "${WS}": str(self.workspace.path),
            "${OUT}": str(self.outside),
            "${OUTNAME}": self.outside.name,
            "${SIBPATH}": str(self.sibling),
            "${SIB}": self.sibling.name,
        }.items():
            text = text.replace(name, value)
        return text

    def lay(self, item: dict[str, Any]) -> None:
        kind = next(iter(item))
        place = self.workspace.path / item[kind]
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            place.write_bytes(item["text"].encode() if "text" in item else b"x" * item["size"])
        elif kind == "dir":
            place.mkdir()
        elif kind == "symlink":
            place.symlink_to(self.filled(item["to"]))
        elif kind == "hardlink":
            place.hardlink_to(self.filled(item["to"]))
        elif kind == "fifo":
            os.mkfifo(place)
        else:
            pytest.fail(f"unknown fixture {item}")


async def run_case(ground: Ground, asked: dict[str, Any]) -> dict[str, Any]:
    """Run a case's operation; return the output, or the refusal as ``{"refused": …}``."""
    input: dict[str, Any] = {"path": ground.filled(asked["path"])}
    if asked["op"] != "read":
        content = asked["content"]
        text = content if isinstance(content, str) else content["repeat"] * content["times"]
        input |= {"content": text, "append": asked["op"] == "append"}
    try:
        return await call(
            file_read if asked["op"] == "read" else file_write, ground.workspace, input
        )
    except (ExecutionFailed, InvalidInput) as error:
        return {"refused": f"{error} {getattr(error, 'violations', '')}"}


@each_case("paths")
async def test_a_path_is_taken_or_refused_as_its_case_says(
    case: dict[str, Any], tmp_path: Path
) -> None:
    asked, expect = case["input"], case["expect"]
    if asked["op"] == "workspace":
        assert Workspace(tmp_path, asked["api_key_id"], LIMIT).path.name == expect["dir"]
        return
    ground = Ground(tmp_path)
    for item in asked.get("fixture", []):
        ground.lay(item)

    output = await run_case(ground, asked)

    assert ground.state() == ground.before
    assert "TOP" not in str(output)
    assert str(tmp_path) not in str(output)
    root = ground.workspace.path
    if expect.get("before_io") and "fixture" not in asked:
        assert not root.exists()
    if expect["decision"] == "any":
        assert len(output.get("content", "")) <= expect.get("max_bytes", LIMIT)
        return
    assert ("refused" in output) == (expect["decision"] == "reject"), output
    if expect["decision"] == "reject":
        for item in asked.get("fixture", []):
            if "size" in item:
                assert (root / item["file"]).stat().st_size == item["size"]
        return
    assert output["success"] is True
    assert output["path"] == expect["resolved"]
    size = output["bytesRead"] if asked["op"] == "read" else (root / output["path"]).stat().st_size
    assert size == expect.get("size", size)
    if asked["op"] == "read":
        assert output["content"] == (root / output["path"]).read_text()


# --- file_read


async def test_a_text_is_written_and_read_back(workspace: Workspace) -> None:
    written = await call(file_write, workspace, {"path": "./notes//a.txt", "content": "grün"})
    assert written == {"success": True, "path": "notes/a.txt", "bytesWritten": 5}
    read = await call(file_read, workspace, {"path": "notes/a.txt"})
    assert read == {
        "success": True,
        "path": "notes/a.txt",
        "content": "grün",
        "bytesRead": 5,
        "encoding": "utf8",
    }


async def test_any_bytes_travel_as_base64(workspace: Workspace) -> None:
    data = bytes(range(256))
    sent = {"path": "b", "content": base64.b64encode(data).decode(), "encoding": "base64"}
    assert (await call(file_write, workspace, sent))["bytesWritten"] == 256
    read = await call(file_read, workspace, {"path": "b", "encoding": "base64"})
    assert base64.b64decode(read["content"]) == data
    assert (read["bytesRead"], read["encoding"]) == (256, "base64")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\x00b"])
async def test_bytes_that_are_no_text_are_only_read_as_base64(
    workspace: Workspace, data: bytes
) -> None:
    await workspace.write("b", data)
    error = await refusal(file_read, workspace, {"path": "b"})
    assert error.code == ErrorCode.INVALID_INPUT
    assert str(error) == "File is not UTF-8 text: b. Read it with encoding base64"


async def test_reading_what_is_not_there_says_so_and_makes_nothing(workspace: Workspace) -> None:
    error = await refusal(file_read, workspace, {"path": "notes/a.txt"})
    assert error.code == ErrorCode.FILE_NOT_FOUND
    assert str(error) == "File not found: notes/a.txt"
    assert not workspace.path.exists()


# --- file_write


async def test_appending_adds_to_the_end_also_when_overwriting_is_off(workspace: Workspace) -> None:
    for text in ("one ", "two"):
        sent = {"path": "log", "content": text, "append": True, "overwrite": False}
        assert (await call(file_write, workspace, sent))["bytesWritten"] == len(text)
    assert (await call(file_read, workspace, {"path": "log"}))["content"] == "one two"


async def test_a_file_is_not_replaced_when_overwriting_is_off(workspace: Workspace) -> None:
    sent = {"path": "a", "content": "first", "overwrite": False}
    await call(file_write, workspace, sent)
    error = await refusal(file_write, workspace, {**sent, "content": "second"})
    assert error.code == ErrorCode.FILE_EXISTS
    assert str(error) == "File exists already: a. Set overwrite to replace it"
    assert (await call(file_read, workspace, {"path": "a"}))["content"] == "first"
    assert [file.name for file in workspace.path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", ["YQ", "YQ==\n", "Y Q=", "YQ==YQ==", "-_-_", "é", "Y"])
async def test_what_is_not_strictly_base64_is_refused(workspace: Workspace, content: str) -> None:
    sent = {"path": "a", "content": content, "encoding": "base64"}
    error = await refusal(file_write, workspace, sent)
    assert error.code == ErrorCode.INVALID_INPUT
    assert "not base64" in str(error)
    assert not workspace.path.exists()


async def test_a_lone_surrogate_is_no_content(workspace: Workspace) -> None:
    sent = FileWrite.model_construct(path="a", content="\ud800")
    with pytest.raises(ExecutionFailed, match="lone surrogate"):
        await file_write(sent, surroundings(workspace))


# --- both


@pytest.mark.parametrize("function", [file_read, file_write])
async def test_unknown_and_mistyped_fields_are_refused_by_the_schema(
    function: Any, workspace: Workspace
) -> None:
    good = {"path": "a", "content": "x"} if function is file_write else {"path": "a"}
    for wrong in ({"mode": 1}, {"path": 1}, {"encoding": "latin1"}, {"encoding": None}):
        with pytest.raises(InvalidInput):
            await call(function, workspace, {**good, **wrong})
    with pytest.raises(InvalidInput):
        await call(function, workspace, {})


@pytest.mark.parametrize("function", [file_read, file_write])
def test_the_built_ins_declare_good_schemas_and_speak_camel_case(function: Any) -> None:
    found = declared(function)
    assert found.builtin
    assert found.description
    for model in (found.input_model, found.output_model):
        assert model is not None
        schema = model.model_json_schema(by_alias=True)
        check_schema(schema)
        assert not any("_" in name for name in schema["properties"])


@pytest.mark.parametrize(
    ("input", "safe"),
    [
        ({}, True),
        ({"overwrite": True, "append": False}, True),
        ({"overwrite": False}, False),
        ({"append": True}, False),
    ],
)
def test_only_plain_overwriting_may_run_twice(input: dict[str, Any], safe: bool) -> None:
    assert declared(file_read).idempotent is True
    assert compiled(declared(file_write).idempotent).matches(input) is safe
