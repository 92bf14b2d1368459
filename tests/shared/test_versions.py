from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.versions import is_version, key, resolve, split
from tests.casefiles import each_case

part = st.integers(0, 4)
triple = st.tuples(part, part, part)
OPERATORS = ["", "=", "==", "^", "~", ">", ">=", "<", "<="]


def written(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def satisfies(operator: str, wanted: tuple[int, int, int], it: tuple[int, int, int]) -> bool:
    """Say what npm says, from its documentation: a second opinion on the library."""
    fixed = 1 if wanted[0] else 2 if wanted[1] else 3
    return {
        "": it == wanted,
        "=": it == wanted,
        "==": it == wanted,
        "^": it >= wanted and it[:fixed] == wanted[:fixed],
        "~": it >= wanted and it[:2] == wanted[:2],
        ">": it > wanted,
        ">=": it >= wanted,
        "<": it < wanted,
        "<=": it <= wanted,
    }[operator]


@each_case("semver")
def test_a_constraint_resolves_as_its_case_says(case: dict[str, Any]) -> None:
    asked = case["input"]
    assert resolve(asked["constraint"], asked["versions"]) == case["expect"]["resolved"]


@given(st.sampled_from(OPERATORS), triple, st.lists(triple, max_size=8))
def test_resolving_agrees_with_a_plain_reading_of_npms_rules(
    operator: str, wanted: tuple[int, int, int], there: list[tuple[int, int, int]]
) -> None:
    fitting = [version for version in there if satisfies(operator, wanted, version)]
    expected = written(max(fitting)) if fitting else None
    assert resolve(operator + written(wanted), map(written, there)) == expected


@given(st.text(), st.lists(st.text()))
@example("^1.0.0", ["1.0.0\n", "\uff11.0.0"])
@example("=" * 5000, [])
@example("1" * 10_000 + ".0.0", ["1" * 10_000 + ".0.0"])
def test_no_text_makes_resolving_raise_or_invent_a_version(
    constraint: str, versions: list[str]
) -> None:
    found = resolve(constraint, versions)
    assert found is None or (found in versions and is_version(found))


def test_a_version_beyond_every_machine_integer_still_counts() -> None:
    huge = "99999999999999999999999999.0.0"
    assert resolve(">=1.0.0", ["2.0.0", huge]) == huge


def test_the_versions_may_come_from_an_iterator() -> None:
    assert resolve("^1.0.0", iter(["1.0.0", "1.1.0"])) == "1.1.0"


@pytest.mark.parametrize(
    "text", ["1.2", "1.2.3.4", "v1.2.3", "1.2.3-a", "1.2.3\n", "", "\u0661.2.3"]
)
def test_what_is_not_three_numbers_is_no_version(text: str) -> None:
    assert not is_version(text)
    with pytest.raises(ValueError, match="three numbers"):
        key(text)


def test_versions_sort_by_number() -> None:
    assert sorted(["1.10.0", "1.9.0", "10.0.0"], key=key) == ["1.9.0", "1.10.0", "10.0.0"]


@pytest.mark.parametrize(
    ("identifier", "name", "constraint"),
    [
        ("echo", "echo", None),
        ("echo@1.2.3", "echo", "1.2.3"),
        ("echo@^1.2.3", "echo", "^1.2.3"),
        ("echo@ >= 1.2.3 ", "echo", ">= 1.2.3"),
        ("@scope/x", "@scope/x", None),
        ("@scope/x@~1.0.0", "@scope/x", "~1.0.0"),
        ("team@home", "team@home", None),
        ("team@home@1.0.0", "team@home", "1.0.0"),
        ("echo@latest", "echo@latest", None),
        ("echo@1", "echo@1", None),
        ("echo@", "echo@", None),
        ("@1.0.0", "@1.0.0", None),
        ("", "", None),
    ],
)
def test_an_identifier_splits_at_its_last_at_sign_when_a_constraint_follows(
    identifier: str, name: str, constraint: str | None
) -> None:
    assert split(identifier) == (name, constraint)
