"""From a request to a row: which skill, whether the input will do, what goes into the table."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json
from uuid_utils.compat import uuid7

from dispatcher.caller import Caller
from dispatcher.defaults import Resolved, resolve
from shared.digest import digest
from shared.errors import InvalidInput, PayloadTooLarge
from shared.executions import Created, Executions, Existing, NewExecution
from shared.models import Execution, PendingReason, Skill, SubmitRequest, trusted
from shared.queue import Entry
from shared.settings import Settings
from shared.snapshot import Snapshot
from shared.states import Status
from shared.validators import Validators
from shared.versions import split

GIVEN = tuple(name for name in Execution.model_fields if name in NewExecution._fields)
BLANK: dict[str, Any] = {
    **dict.fromkeys(name for name in Execution.model_fields if name not in GIVEN),
    "status": Status.PENDING,
    "attempt": 0,
}
given = attrgetter(*GIVEN)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that will do: its skill, the row to commit, the time limit of its attempts.

    ``weight`` is its owner's share of the turns.
    """

    request: SubmitRequest
    skill: Skill
    new: NewExecution
    limit_ms: int
    weight: float


def prepare(
    snapshot: Snapshot,
    request: SubmitRequest,
    caller: Caller,
    idempotency_key: str | None,
    validators: Validators,
    settings: Settings,
) -> Prepared:
    """Check a request and work out its row.

    Raises SkillNotFound, SkillDisabled, InvalidInput or PayloadTooLarge.
    """
    owner = caller.acting_for(request.api_key_id)
    skill = find(snapshot, request, owner, caller)
    text = check(skill, request.input, validators, settings.max.input_bytes)
    rules = resolve(request, skill, snapshot.handlers.get(skill.handler or ""), snapshot.settings)
    new = row(
        request,
        skill,
        rules,
        text,
        owner=owner,
        caller=caller,
        settings=settings,
        idempotency_key=idempotency_key,
    )
    limit_ms = rules.timeout_ms or snapshot.settings.execution_timeout_ms
    return Prepared(request, skill, new, limit_ms, snapshot.weight(owner))


def find(snapshot: Snapshot, request: SubmitRequest, owner: str, caller: Caller) -> Skill:
    """Return the skill that the request means, if the caller may use it.

    Raises SkillNotFound or SkillDisabled.
    """
    wanted = request.skill_id or request.skill_name or ""
    return snapshot.resolve(wanted, owner, caller.allows)


def check(skill: Skill, input: dict[str, Any], validators: Validators, limit: int) -> str:
    """Return the input's JSON text once it fits ``limit`` bytes and the skill's schema.

    Raises PayloadTooLarge, or InvalidInput with every violation.
    """
    try:
        text = to_json(input)
    except PydanticSerializationError as error:
        raise InvalidInput("The input can't be written as JSON", [whole(str(error))]) from None
    if (b"NaN" in text or b"Infinity" in text) and not finite(text):
        violation = whole("NaN and Infinity are not JSON")
        raise InvalidInput("The input is not valid", [violation])
    if len(text) > limit:
        raise PayloadTooLarge(
            f"The input is {len(text)} bytes, the limit is {limit} (SKILLS_MAX_INPUT_BYTES)"
        )
    if b"\\u0000" in text and holds_nul(input):
        raise InvalidInput("The input is not valid", [whole("NUL characters can't be stored")])
    validators.of(skill, "input").check(input)
    return text.decode()


def row(
    request: SubmitRequest,
    skill: Skill,
    rules: Resolved,
    text: str,
    *,
    owner: str,
    caller: Caller,
    settings: Settings,
    idempotency_key: str | None,
) -> NewExecution:
    """Return the row to commit; raise InvalidInput for one that expires before it may run."""
    if request.expires_at and request.not_before and request.expires_at <= request.not_before:
        violation = {"pointer": "/expiresAt", "message": "is not after notBefore"}
        raise InvalidInput("The request would expire before it may run", [violation])
    key = identity(request, idempotency_key)
    asked = split(request.skill_name)[1] if request.skill_name else skill.version
    return NewExecution(
        id=uuid7(),
        skill_id=skill.id,
        skill_name=skill.name,
        skill_version=skill.version,
        handler=skill.handler or skill.kind,
        api_key_id=owner,
        caller=caller.surface,
        session_id=request.session_id,
        provider=request.provider,
        model=request.model,
        tool_call_id=request.tool_call_id,
        request_identity=request.request_identity,
        input_digest=digest(skill.name, asked, request.input) if key else None,
        input=text,
        max_retries=rules.max_retries,
        timeout_ms=rules.timeout_ms,
        idempotent=rules.idempotent,
        retry_on_timeout=rules.retry_on_timeout,
        queue=rules.queue,
        priority=request.priority,
        not_before=request.not_before,
        expires_at=request.expires_at,
        key=key,
        key_ttl_ms=settings.idempotency.ttl_ms,
    )


def identity(request: SubmitRequest, idempotency_key: str | None) -> str | None:
    """Return the idempotency key: the header's, else request identity and tool call together."""
    if idempotency_key is not None:
        return f"key:{idempotency_key}"
    if request.request_identity and request.tool_call_id:
        # The length in front keeps two different pairs from reading alike.
        first = request.request_identity
        return f"call:{len(first)}:{first}:{request.tool_call_id}"
    return None


def entry(prepared: Prepared) -> Entry:
    """Return what the queue is told of a new row."""
    new = prepared.new
    return Entry(
        new.id,
        0,
        new.queue,
        new.priority,
        new.not_before,
        owner=new.api_key_id,
        skill=str(new.skill_id),
        weight=prepared.weight,
    )


async def commit(executions: Executions, new: NewExecution) -> Created | Existing:
    """Commit the row, or say whose its idempotency key is.

    Raises InvalidInput for one that has expired, unless it repeats one that came in time.
    """
    if not expired(new):
        return await executions.create(new)
    held = await executions.holder(new)
    if held is None:
        violation = {"pointer": "/expiresAt", "message": "lies in the past"}
        raise InvalidInput("The request expired before it came", [violation])
    return held


async def commit_many(
    executions: Executions, news: Sequence[NewExecution]
) -> list[Created | Existing | BaseException]:
    """Commit many rows, together as far as they fit one statement; each has its own answer."""
    late = [new for new in news if expired(new)]
    if not late:
        return await executions.create_many(news)
    held = await asyncio.gather(*(commit(executions, new) for new in late), return_exceptions=True)
    answers = dict(zip((new.id for new in late), held, strict=True))
    timely = [new for new in news if new.id not in answers]
    made = await executions.create_many(timely)
    answers |= zip((new.id for new in timely), made, strict=True)
    return [answers[new.id] for new in news]


def expired(new: NewExecution) -> bool:
    """Tell whether the time of a row to be is over."""
    return new.expires_at is not None and new.expires_at <= datetime.now(UTC)


def pending(
    new: NewExecution, request: SubmitRequest, made: Created, reason: PendingReason
) -> Execution:
    """Return the record of a row just committed, without reading it back."""
    values = dict(zip(GIVEN, given(new), strict=True))
    values |= BLANK
    values["attempts"] = []
    values["created_at"] = made.created_at
    values["input"] = request.input
    values["pending_reason"] = reason
    return trusted(Execution, values)


def whole(message: str) -> dict[str, str]:
    """Return a violation of the input as a whole."""
    return {"pointer": "", "message": message}


def finite(text: bytes) -> bool:
    """Tell whether a JSON text holds proper numbers only; its writer would let others through."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def holds_nul(value: Any) -> bool:
    """Tell whether a NUL stands in any string of a JSON value; jsonb can't hold one."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(holds_nul(key) or holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(holds_nul, value))
