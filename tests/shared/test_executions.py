import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from shared import stale
from shared.db import transaction
from shared.errors import InvalidInput
from shared.executions import Created, Ending, Executions
from shared.states import TERMINAL, Status, allows
from tests.factories import claim_one, new_execution, pool_to, row, submit
from tests.shared.doors import ECHO, WORKERS, claimed, ending


async def test_a_row_goes_from_pending_through_running_to_its_end(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    new = new_execution(input='{"a": [1, 2.5, "ü"]}', session_id="s", timeout_ms=5000)
    made = await executions.create(new)
    fresh = await row(pool, new.id)
    assert isinstance(made, Created)
    assert (fresh["status"], fresh["attempt"], fresh["attempts"]) == ("pending", 0, [])
    assert fresh["created_at"] == made.created_at

    claim = await claim_one(executions, new.id, "worker-a")
    assert claim is not None
    assert (claim.attempt, claim.input, claim.timeout_ms) == (1, {"a": [1, 2.5, "ü"]}, 5000)
    running = await row(pool, new.id)
    assert (running["status"], running["worker_id"]) == ("running", "worker-a")

    assert await executions.finish(ending(claim, duration_ms=12))
    done = await row(pool, new.id)
    assert (done["status"], done["output"], done["duration_ms"]) == ("success", {"ok": True}, 12)
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    assert done["worker_id"] == "worker-a"


async def test_a_hundred_executions_are_claimed_once_each_by_two_workers_that_race(
    database_url: str, executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    ids = await asyncio.gather(*(submit(executions) for _ in range(100)))
    async with pool_to(database_url) as other_pool:
        rivals = {"worker-a": executions, "worker-b": Executions(other_pool, ECHO)}
        # Each worker asks for every row twice, in opposite orders, all at once.
        asked = [(w, i) for i in ids for w in WORKERS] + [
            (w, i) for i in reversed(ids) for w in reversed(WORKERS)
        ]
        found = await asyncio.gather(*(claim_one(rivals[w], i, w) for w, i in asked))
    got = [claim for claim in found if claim is not None]
    assert len({claim.id for claim in got}) == len(got)
    assert {claim.attempt for claim in got} == {1}
    for claim in got:
        stored = await row(pool, claim.id)
        assert (stored["status"], stored["attempt"]) == ("running", 1)
        assert stored["worker_id"] == claim.worker_id
    assert {claim.id for claim in got} == set(ids)


async def test_separate_connections_that_race_for_one_row_get_it_once(
    database_url: str, executions: Executions
) -> None:
    wanted = await submit(executions)
    async with pool_to(database_url) as other:
        doors = [Executions(other if n % 2 else executions._pool, ECHO) for n in range(8)]
        found = await asyncio.gather(*(claim_one(d, wanted, f"w{n}") for n, d in enumerate(doors)))
    assert len([claim for claim in found if claim]) == 1


async def test_a_zombie_s_ending_changes_nothing_once_another_attempt_began(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    first = await claimed(executions)
    assert await executions.finish(ending(first, Status.PENDING, output=None))
    second = await claim_one(executions, first.id, "worker-a")
    assert second is not None
    assert second.attempt == 2
    before = await row(pool, first.id)

    assert not await executions.finish(ending(first))
    assert not await executions.finish(ending(first, Status.PENDING))
    assert not await executions.finish(ending(first, attempt=2, worker_id="worker-b"))
    assert await row(pool, first.id) == before

    assert await executions.finish(ending(second))
    assert not await executions.finish(ending(second, Status.ERROR))
    assert (await row(pool, first.id))["status"] == "success"


async def test_endings_of_different_attempts_in_one_batch_are_told_apart(
    executions: Executions,
) -> None:
    first = await claimed(executions)
    await executions.finish(ending(first, Status.PENDING))
    second = await claim_one(executions, first.id, "worker-b")
    assert second is not None
    answers = await executions._finish([ending(first), ending(second)])
    assert answers == [None, Status.SUCCESS]


async def test_only_handlers_of_this_process_are_claimed(executions: Executions) -> None:
    wanted = await submit(executions, handler="somebody-elses")
    assert await claim_one(executions, wanted, "worker-a") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"not_before": timedelta(hours=1)},
        {"expires_at": timedelta(seconds=-1)},
    ],
    ids=["not due yet", "expired"],
)
async def test_a_row_out_of_its_time_is_not_claimed(
    executions: Executions, changes: dict[str, timedelta]
) -> None:
    now = datetime.now(UTC)
    wanted = await submit(executions, **{name: now + after for name, after in changes.items()})
    assert await claim_one(executions, wanted, "worker-a") is None


@pytest.mark.parametrize(("approval", "claimable"), [("required", False), ("approved", True)])
async def test_a_row_that_waits_for_approval_is_not_claimed(
    executions: Executions,
    pool: "asyncpg.Pool[asyncpg.Record]",
    approval: str,
    claimable: bool,
) -> None:
    wanted = await submit(executions)
    await pool.execute("UPDATE skill_executions SET approval = $1 WHERE id = $2", approval, wanted)
    assert (await claim_one(executions, wanted, "worker-a") is not None) == claimable


async def test_a_row_handed_back_rests_until_its_time(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    claim = await claimed(executions)
    await executions.finish(
        ending(claim, Status.PENDING, output=None, retry_in_s=3600.0, history='{"attempt": 1}')
    )
    assert await claim_one(executions, claim.id, "worker-a") is None
    resting = await row(pool, claim.id)
    assert resting["retry_at"] > datetime.now(UTC) + timedelta(minutes=59)
    assert (resting["worker_id"], resting["started_at"], resting["finished_at"]) == (None,) * 3
    assert resting["attempts"][0].keys() == {"attempt", "startedAt", "finishedAt"}


# --- every sequence of what can happen to a row -----------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(WORKERS)),
    st.tuples(
        st.just("finish"),
        st.sampled_from([s for s in Status if s is not Status.RUNNING]),
        st.sampled_from([0, 0, 0, -1, 1]),
        st.sampled_from(WORKERS),
    ),
    st.tuples(st.just("reap")),
    st.tuples(st.just("expire")),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=12), idempotent=st.booleans(), retries=st.integers(0, 2))
async def test_no_sequence_of_events_leaves_the_table_of_moves(
    executions: Executions,
    pool: "asyncpg.Pool[asyncpg.Record]",
    steps: list[tuple[Any, ...]],
    idempotent: bool,
    retries: int,
) -> None:
    execution_id = await submit(executions, idempotent=idempotent, max_retries=retries)
    before = await row(pool, execution_id)
    for step in steps:
        moved = await taken(executions, pool, execution_id, step, before)
        after = await row(pool, execution_id)
        was, now = Status(before["status"]), Status(after["status"])
        if moved:
            assert allows(was, now), f"{was} → {now} by {step}"
        else:
            assert after == before, f"{step} changed what it must not"
        began = moved and now is Status.RUNNING
        assert after["attempt"] == before["attempt"] + began
        if was in TERMINAL:
            assert after == before
        before = after
    lost = [e for e in before["attempts"] if e.get("errorCode") == "worker_lost"]
    assert len(lost) <= 1 + retries


async def taken(
    executions: Executions,
    pool: "asyncpg.Pool[asyncpg.Record]",
    execution_id: UUID,
    step: tuple[Any, ...],
    before: Mapping[str, Any],
) -> bool:
    """Do the step; return whether it says that it moved the row, checked against what it should."""
    match step:
        case ("claim", worker):
            moved = await claim_one(executions, execution_id, worker) is not None
            assert moved == (before["status"] == "pending")
        case ("finish", status, shift, worker):
            attempt = before["attempt"] + shift
            moved = (
                await executions.finish(
                    Ending(id=execution_id, attempt=attempt, worker_id=worker, status=status)
                )
                is not None
            )
            ours = before["worker_id"] == worker and shift == 0
            assert moved == (before["status"] == "running" and ours)
        case ("reap",):
            async with transaction(pool) as connection:
                reaped = await stale.reap(connection)
            again = [entry.execution_id for entry in reaped.again]
            moved = execution_id in [*again, *reaped.ended]
            assert moved == (before["status"] == "running")  # no worker here ever beats
        case _:
            async with transaction(pool) as connection:
                moved = execution_id in [e.execution_id for e in await stale.expire(connection)]
            assert not moved
    return moved


async def test_a_value_that_postgres_can_not_hold_fails_its_own_request_only(
    executions: Executions,
) -> None:
    bad = new_execution(input='{"text": "\\u0000"}')
    good = [new_execution() for _ in range(5)]
    made = await asyncio.gather(
        *map(executions.create, [*good[:2], bad, *good[2:]]), return_exceptions=True
    )
    assert isinstance(made.pop(2), InvalidInput)
    assert [type(answer) for answer in made] == [Created] * 5


async def test_a_row_that_breaks_a_constraint_fails_alone(executions: Executions) -> None:
    made = await asyncio.gather(
        *map(executions.create, [new_execution(), new_execution(priority="urgent")]),
        return_exceptions=True,
    )
    assert isinstance(made[0], Created)
    assert isinstance(made[1], asyncpg.CheckViolationError)


# --- partitions ---------------------------------------------------------------------------------


async def test_a_row_lands_in_the_partition_of_its_month_or_in_the_default_one(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    now, late = new_execution(), new_execution(id=UUID(int=uuid7().int | 0x7 << 125))
    for new in (now, late):
        await executions.create(new)
    homes = {
        record["id"]: record["home"]
        for record in await pool.fetch(
            "SELECT id, tableoid::regclass::text AS home FROM skill_executions"
        )
    }
    assert homes == {
        now.id: f"skill_executions_{datetime.now(UTC):%Y_%m}",
        late.id: "skill_executions_default",
    }
    for new in (now, late):
        claim = await claim_one(executions, new.id, "worker-a")
        assert claim is not None
        assert await executions.finish(ending(claim))
