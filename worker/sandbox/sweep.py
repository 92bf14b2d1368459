"""Which containers to remove though nobody waits for them. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from worker.sandbox.spec import HELPER, LABEL

OVERDUE_S = 10.0
"""How long past its deadline one of our own containers may still be there."""

ABANDONED_S = 600.0
"""How long past its deadline any fleet's container may be there: its owner surely is not."""


def doomed(
    container: Mapping[str, Any],
    *,
    fleet: str,
    worker: str,
    live: Collection[str],
    held: Collection[str],
    now: float,
) -> bool:
    """Tell whether to remove a container from the engine's list.

    ``live`` are the fleet's live workers, ``now`` is Unix time in seconds. ``held`` are the names
    this worker's runs hold, looked up after the list was made: a run holds its name from before
    the create, so what it doesn't hold is left over. Another live worker's are never touched.
    """
    labels = container.get("Labels") or {}
    overdue_s = now - deadline_s(labels)
    if labels.get(f"{LABEL}fleet") != fleet:
        return overdue_s > ABANDONED_S
    owner = labels.get(f"{LABEL}worker")
    if owner != worker:
        return owner not in live
    names = [name.strip("/").removesuffix(HELPER) for name in container.get("Names") or ()]
    return overdue_s > OVERDUE_S or not any(name in held for name in names)


def deadline_s(labels: Mapping[str, str]) -> float:
    """Read a deadline label as Unix seconds; one that can't be read has passed."""
    try:
        return int(labels.get(f"{LABEL}deadline", "")) / 1000
    except ValueError:
        return 0.0
