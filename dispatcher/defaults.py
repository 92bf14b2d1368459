"""What a call left open, filled in: call, else skill, else handler, else the run-time settings."""

from dataclasses import dataclass
from typing import Any

from shared.announce import HandlerInfo
from shared.live import LiveSettings
from shared.models import MAX_TIMEOUT_MS, Skill, SubmitRequest
from shared.schemas import compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The rules of one execution. ``timeout_ms`` None leaves it to the setting at run time."""

    queue: str
    timeout_ms: int | None
    max_retries: int
    idempotent: bool
    retry_on_timeout: bool


def resolve(
    request: SubmitRequest, skill: Skill, info: HandlerInfo | None, settings: LiveSettings
) -> Resolved:
    """Work out the rules; ``info`` is None for a handler that was never announced."""
    return Resolved(
        queue=info.queue if info else "direct",
        timeout_ms=timeout(request, skill, info),
        max_retries=first(
            request.max_retries, skill.max_retries, info and info.max_retries, settings.max_retries
        ),
        idempotent=skill.idempotent
        if skill.idempotent is not None
        else info is not None and repeatable(info, request.input),
        retry_on_timeout=first(skill.retry_on_timeout, info and info.retry_on_timeout, False),
    )


def timeout(request: SubmitRequest, skill: Skill, info: HandlerInfo | None) -> int | None:
    """Return the limit in milliseconds: the shorter of call and input, where both are given."""
    asked = [request.timeout_ms, from_input(info, request.input)]
    given = [value for value in asked if value is not None]
    chosen = min(given) if given else first(skill.timeout_ms, info and info.timeout_ms)
    if chosen is not None and info and info.max_timeout_ms:
        return min(chosen, info.max_timeout_ms)
    return chosen


def from_input(info: HandlerInfo | None, input: dict[str, Any]) -> int | None:
    """Return the limit that the input itself states, for handlers that have such a field."""
    value = input.get(info.timeout_input) if info and info.timeout_input else None
    # JSON knows one kind of number: 1000.0 is a whole one too.
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    return max(1, min(int(value), MAX_TIMEOUT_MS)) if whole and value is not None else None


def repeatable(info: HandlerInfo, input: dict[str, Any]) -> bool:
    """Tell whether running this input twice does no harm, by the handler's own word."""
    if isinstance(info.idempotent, bool):
        return info.idempotent
    return compiled(info.idempotent).matches(input)


def first(*values: Any) -> Any:
    """Return the first value that is not None; None when all are."""
    return next((value for value in values if value is not None), None)
