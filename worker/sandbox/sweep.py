"""Which containers to remove though nobody waits for them. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from worker.sandbox.spec import LABEL

OVERDUE_S = 10.0
"""How long past its deadline one of our own containers may still be there."""

LOST_S = 60.0
"""How old a container of ours may be that no run knows: its create's answer was lost."""

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

    ``live`` are the fleet's live workers, ``held`` the names this worker's runs hold, ``now`` is
    Unix time in seconds. Another live worker's containers are never touched.
    """
    labels = container.get("Labels") or {}
    overdue_s = now - deadline_s(labels)
    if labels.get(f"{LABEL}fleet") != fleet:
        return overdue_s > ABANDONED_S
    owner = labels.get(f"{LABEL}worker")
    if owner != worker:
        return owner not in live
    if overdue_s > OVERDUE_S:
        return True
    known = any(name.strip("/") in held for name in container.get("Names") or ())
    return not known and now - float(container.get("Created", now)) > LOST_S


def deadline_s(labels: Mapping[str, str]) -> float:
    """Read a deadline label as Unix seconds; one that can't be read has passed."""
    try:
        return int(labels.get(f"{LABEL}deadline", "")) / 1000
    except ValueError:
        return 0.0
