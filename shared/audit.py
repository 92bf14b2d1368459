"""Who changed what: one row for each change that an operator or a key made."""

from collections.abc import Mapping
from typing import Any

from uuid_utils.compat import uuid7


async def record(
    connection: Any, actor: str, action: str, target: object, detail: Mapping[str, Any]
) -> None:
    """Write down who did what, in the transaction that did it."""
    await connection.execute(
        "INSERT INTO audit (id, actor, action, target, detail) VALUES ($1, $2, $3, $4, $5)",
        uuid7(),
        actor,
        action,
        str(target),
        dict(detail),
    )
