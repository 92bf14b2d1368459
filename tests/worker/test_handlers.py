import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shared.errors import ConfigurationError
from tests.factories import SPECIMENS, handler_of, make_settings
from worker.context import Context
from worker.handlers import Handler, handler, load
from worker.offer import info, skill


class Asked(BaseModel):
    n: int


class Given(BaseModel):
    m: int


def loaded(*modules: str) -> dict[str, Handler]:
    return load(make_settings(handler={"modules": list(modules)}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder that Python imports from, and forget afterwards what came from it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_decorator_reads_models_and_description_from_the_function() -> None:
    @handler("h", idempotent=True, tags=("t",))
    async def call(input: Asked, context: Context) -> Given:
        """Says what it does."""
        return Given(m=input.n)

    found = handler_of(call)
    assert (found.name, found.input_model, found.output_model) == ("h", Asked, Given)
    assert (found.description, found.idempotent, found.tags) == ("Says what it does.", True, ("t",))


def test_a_function_without_models_is_given_the_plain_input() -> None:
    @handler("h", description="Mine.")
    def call(input: dict[str, Any], context: Any) -> Any:
        """Another text."""

    found = handler_of(call)
    assert (found.input_model, found.output_model, found.description) == (None, None, "Mine.")


def test_built_ins_and_the_operator_s_modules_are_found() -> None:
    found = loaded(SPECIMENS, "worker.samples")
    assert {"file_read", "file_write", "eval_code", "execute_command"} <= set(found)
    assert {"gate", "echo-handler", "sleep-handler"} <= set(found)
    assert found["file_read"].builtin
    assert not found["gate"].builtin
    assert "gate" not in loaded()


def test_a_module_in_any_folder_on_the_path_will_do(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from worker.handlers import handler\n"
        "@handler('mine')\ndef mine(input, context):\n    return {}\n"
        "alias = mine\n"
    )
    assert loaded("mine")["mine"].name == "mine"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "ModuleNotFoundError"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("1 / 0", "ZeroDivisionError"),
        ("from worker.handlers import handler\n@handler('x')\ndef x(): ...", "input"),
        (
            "from worker.handlers import handler\n@handler('x', queue='fast')\ndef x(i, c): ...",
            "fast",
        ),
        (
            "from worker.handlers import handler\n@handler('x', retries=1)\ndef x(i, c): ...",
            "retries",
        ),
    ],
)
def test_a_module_that_can_not_be_used_is_named_with_the_reason(
    folder: Path, source: str | None, reason: str
) -> None:
    if source is not None:
        (folder / "broken.py").write_text(source)
    with pytest.raises(ConfigurationError, match=f"(?s)broken.*{reason}.*SKILLS_HANDLER_MODULES"):
        loaded("broken")


def test_two_handlers_of_one_name_are_told_apart_by_their_modules(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(
            "from worker.handlers import handler\n"
            "@handler('same')\ndef same(input, context):\n    return {}\n"
        )
    with pytest.raises(ConfigurationError, match="same: in one and two"):
        loaded("one", "two")


def test_what_is_announced_are_the_defaults_with_settings_worked_out() -> None:
    settings = make_settings(sandbox={"timeout_ms": 1234})

    @handler(
        "h",
        timeout_ms=lambda settings: settings.sandbox.timeout_ms,
        idempotent={"required": ["safe"]},
        version="2.0.0",
    )
    def call(input: dict[str, Any], context: Context) -> dict[str, Any]:
        """Does it."""
        return input

    announced = info(handler_of(call), settings)
    assert (announced.timeout_ms, announced.version) == (1234, "2.0.0")
    assert announced.idempotent == {"required": ["safe"]}
    assert skill(handler_of(call)) is None


def test_a_built_in_s_models_are_its_skill_s_schemas() -> None:
    brought = skill(loaded()["file_read"])
    assert brought is not None
    assert brought.schema["input"]["required"] == ["path"]
    assert brought.schema["input"]["additionalProperties"] is False
    assert "content" in brought.schema["output"]["properties"]
