"""Case files: data from which tests are made, one test a line.

The folder is ``SKILLFLEET_CASES_DIR``, by default ``tests/cases``; the contract is its README.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

HERE = Path(__file__).parent / "cases"
T = TypeVar("T", bound=Callable[..., Any])


def each_case(*names: str) -> Callable[[T], T]:
    """Run the decorated test once for each line of the named files, as argument ``case``.

    Such tests carry the marker ``cases``. Where none of the files is there, there is no test.
    """
    params = [pytest.param(case, id=case["id"]) for name in names for case in load(name)]

    def decorate(test: T) -> T:
        if not params:
            test.__test__ = False  # type: ignore[attr-defined]  # pytest's own mark: no test
            return test
        marked: T = pytest.mark.cases(pytest.mark.parametrize("case", params)(test))
        return marked

    return decorate


def load(name: str) -> list[dict[str, Any]]:
    """Read ``<name>.jsonl``; a file that is not there has no cases."""
    path = Path(os.environ.get("SKILLFLEET_CASES_DIR") or HERE) / f"{name}.jsonl"
    if not path.is_file():
        return []
    # Lines end with a line feed alone: a text may hold U+2028, which splitlines() would cut at.
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]
