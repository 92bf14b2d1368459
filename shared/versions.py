"""Versions and constraints: which version of a skill a caller means.

The contract is npm's for ``^`` and ``~``, plus ``>``, ``>=``, ``<``, ``<=``, ``==``/``=`` and
exact; ``tests/cases/README.md`` has it in full. Whatever lies outside it (partial versions,
wildcards, tags, pre-releases, two comparators, ``||``) satisfies nothing, and never reaches the
semver library.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from nodesemver import max_satisfying

MAX_LENGTH = 256
"""Characters in a version or constraint: npm's own limit, and a bound on what int() has to read."""

VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")
CONSTRAINT = re.compile(r"(\^|~|>=|<=|==|>|<|=|)\s*([0-9]+\.[0-9]+\.[0-9]+)")


def resolve(constraint: str, versions: Iterable[str]) -> str | None:
    """Return the highest of ``versions`` that satisfies ``constraint``; None when none does.

    Entries that are not strictly ``x.y.z`` are ignored; a constraint outside the contract
    satisfies nothing. Neither raises.
    """
    return highest(constraint.strip(), tuple(versions))


@lru_cache(maxsize=4096)
def highest(constraint: str, versions: tuple[str, ...]) -> str | None:
    """Return what ``resolve`` does; cached, for the library takes some 25 µs a version."""
    parts = CONSTRAINT.fullmatch(constraint) if len(constraint) <= MAX_LENGTH else None
    if parts is None:
        return None
    operator, version = parts.groups()
    # The library knows `=`, but `==` would match nothing there.
    wanted = operator.replace("==", "=") + plain(version)
    candidates = {plain(version): version for version in versions if is_version(version)}
    found = max_satisfying(list(candidates), wanted, loose=False)  # type: ignore[no-untyped-call]  # it ships no types
    return None if found is None else candidates[found]


def is_version(text: str) -> bool:
    """Tell whether a text is three runs of ASCII digits and nothing else, within MAX_LENGTH."""
    return len(text) <= MAX_LENGTH and VERSION.fullmatch(text) is not None


def key(version: str) -> tuple[int, int, int]:
    """Return what versions are sorted by; raise ValueError for what is not a version."""
    parts = VERSION.fullmatch(version) if len(version) <= MAX_LENGTH else None
    if parts is None:
        raise ValueError("a version is three numbers joined by dots, such as 1.2.3")
    major, minor, patch = parts.groups()
    return int(major), int(minor), int(patch)


def split(identifier: str) -> tuple[str, str | None]:
    """Split ``name@constraint`` at its last ``@``; the constraint is None when there is none.

    Only a constraint of the contract is split off: ``@scope/x``, ``team@home`` and ``x@latest``
    are names, whole.
    """
    name, _, constraint = identifier.rpartition("@")
    constraint = constraint.strip()
    if name and len(constraint) <= MAX_LENGTH and CONSTRAINT.fullmatch(constraint):
        return name, constraint
    return identifier, None


def plain(version: str) -> str:
    """Write a version without leading zeros, which the library refuses."""
    return ".".join(str(part) for part in key(version))
