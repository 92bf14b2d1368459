"""Which worker does the upkeep: one at a time, for as long as it comes back in time.

A row with a time, not a lock of a connection: a leader that is frozen keeps its connection.
"""

from typing import Any

LEAD = """
INSERT INTO leader (worker_id, until)
VALUES ($1, clock_timestamp() + $2 * interval '1 second')
ON CONFLICT (only_row) DO UPDATE SET worker_id = excluded.worker_id, until = excluded.until
 WHERE leader.worker_id = excluded.worker_id OR leader.until <= clock_timestamp()
RETURNING true
"""


async def lead(connection: Any, worker_id: str, hold_s: float) -> bool:
    """Be, become or stay the leader for so many seconds; False while another one is."""
    return bool(await connection.fetchval(LEAD, worker_id, hold_s))


async def leads(connection: Any, worker_id: str) -> bool:
    """Tell whether the worker is the leader just now."""
    return bool(
        await connection.fetchval(
            "SELECT EXISTS (SELECT FROM leader WHERE worker_id = $1 AND until > clock_timestamp())",
            worker_id,
        )
    )


async def resign(connection: Any, worker_id: str) -> None:
    """Leave the place free for whoever comes next."""
    await connection.execute("DELETE FROM leader WHERE worker_id = $1", worker_id)
