"""Rules of the house that no other tool checks."""

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from shared.errors import ErrorCode
from shared.settings import variables

ROOT = Path(__file__).parent.parent
ROOMS = ("shared", "dispatcher", "worker")
LONGEST = 350
UNSAFE = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal")
HOSTS = r"py[p]i\.org|python[h]osted|registry\.np[m]js"


MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module begins with its docstring"


def test_no_module_of_the_tests_is_longer_either() -> None:
    paths = (ROOT / "tests").rglob("*.py")
    long = [named(path) for path in paths if len(path.read_text().splitlines()) > LONGEST]
    assert long == []


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_is_unpickled_or_loaded_from_unsafe_yaml(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.split(".")[0] in UNSAFE]
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in UNSAFE
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {
                ("yaml", "load"),
                ("yaml", "unsafe_load"),
                ("yaml", "full_load"),
            }


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"SKILLS_[A-Z_]+", (ROOT / "docs" / "settings.md").read_text()))
    assert set(variables()) - documented == set(), "not in docs/settings.md"
    assert documented - set(variables()) == set(), "documented, but there is no such setting"


def test_error_codes_are_lower_snake_case_with_the_one_exception() -> None:
    odd = [code for code in ErrorCode if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", code)]
    assert odd == [ErrorCode.UNKNOWN_SKILL_HANDLER]


def test_the_lock_file_covers_every_dependency_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = {found.lower() for found in re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=~!; ]", line)[0].lower().replace("_", "-") for line in wanted}
    assert names - locked == set(), "run `make lock`"
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", lock)


def test_the_lock_of_another_tool_is_not_kept() -> None:
    assert not (ROOT / "uv.lock").exists()


def test_no_file_names_a_package_registry() -> None:
    folders = (*ROOMS, "tests", "docs", "deploy", ".ci")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    naming = [named(path) for path in paths if re.search(HOSTS, path.read_text(errors="ignore"))]
    assert naming == []
