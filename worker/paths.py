"""The text rules for paths of skills: they decide before any file is touched.

``tests/cases/README.md`` has the contract. Nothing is decoded or expanded: ``%2e``, ``~`` and
``$HOME`` are ordinary characters. What passes here is then walked by the kernel (``worker.walk``),
which no text can talk into leaving the workspace.
"""

import re
import unicodedata

from shared.errors import ErrorCode, ExecutionFailed

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
"""Linux's own limits."""

SCRATCH = ".skillfleet-write"
"""The name under which a folder's next file is written; reserved, see ``worker.workspace``."""

RESTRICTED = frozenset({".env", ".git", ".ssh", ".omniroute", ".codex", "secrets", SCRATCH})
"""Segments that no skill reads or writes (the seeds' list, and our own scratch file)."""

ABSOLUTE = "Skill file paths must be relative to the skill workspace"
RESTRICTED_SEGMENT = "Skill file path contains a restricted segment"
ESCAPES = "Skill file path escapes the skill workspace"

DRIVE = re.compile(r"[A-Za-z]:")
TRAILING = ". \u1680\u2028\u2029"
"""Dots, and the blanks that NFKC leaves (it turns the others into the plain one)."""


def segments(path: object) -> tuple[str, ...]:
    """Return a path's segments; raise ExecutionFailed (path_rejected) for one that breaks a rule.

    Empty and ``.`` segments are dropped; at least one segment is left.
    """
    text = readable(path)
    if text.startswith(("/", "\\")) or DRIVE.match(text):
        raise rejected(ABSOLUTE)
    parts = re.split(r"[/\\]", text)
    if any(restricted(part) for part in parts):
        raise rejected(RESTRICTED_SEGMENT)
    if any(climbs(part) for part in parts):
        raise rejected(ESCAPES)
    if "\\" in text:
        raise rejected("Skill file paths are written with / between segments, not a backslash")
    names = tuple(part for part in parts if part not in {"", "."})
    if not names or text.endswith("/"):
        raise rejected("Skill file path names a folder; name a file")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise rejected(f"A name in the skill file path is longer than {MAX_NAME_BYTES} bytes")
    return names


def readable(path: object) -> str:
    """Return the path when it is a text that can name a file at all."""
    if not isinstance(path, str):
        raise rejected("Skill file path must be a string")
    if not path.strip():
        raise rejected("Skill file path is empty; name a file")
    too_long = rejected(f"Skill file path is longer than {MAX_PATH_BYTES} bytes")
    if len(path) > MAX_PATH_BYTES:
        raise too_long
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in path):
        raise rejected("Skill file path contains a control character or a lone surrogate")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise too_long
    return path


def restricted(segment: str) -> bool:
    """Tell whether a segment reads as a restricted one to some file system or person."""
    folded = unicodedata.normalize("NFKC", segment)
    visible = "".join(c for c in folded if unicodedata.category(c) != "Cf")
    return visible.rstrip(TRAILING).casefold() in RESTRICTED


def climbs(segment: str) -> bool:
    """Tell whether a segment is ``..``, or becomes a dot name or a separator when folded."""
    folded = unicodedata.normalize("NFKC", segment)
    if "/" in folded or "\\" in folded:
        return True
    return folded in {".", ".."} and segment != "."


def rejected(message: str) -> ExecutionFailed:
    """Make the error for a path that is refused."""
    return ExecutionFailed(message, code=ErrorCode.PATH_REJECTED)
