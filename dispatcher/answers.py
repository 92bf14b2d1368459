"""The answers of the REST interface: what is sent, what is documented, what clients read."""

from datetime import datetime
from typing import Generic, Literal, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, Field, SkipValidation, model_validator

from shared.models import (
    Concurrency,
    Execution,
    KeyedSubmit,
    Model,
    RateLimit,
    Scope,
    Skill,
    Text,
    Weight,
)

T = TypeVar("T")


class Warned(Model):
    """Something that worked, with something the caller should know."""

    code: str
    message: str


class ExecutionAnswer(Model):
    """One execution; ``warnings`` only where there are any."""

    execution: Execution
    warnings: list[Warned] | None = None


MAX_BATCH = 1000
"""Submits in one batch: as many rows as one statement commits."""


class BatchRequest(Model):
    """The body of ``POST /api/skills/executions/batch``."""

    executions: list[SkipValidation[KeyedSubmit]] = Field(min_length=1, max_length=MAX_BATCH)


class CancelRequest(Model):
    """The body of ``POST /api/skills/executions/cancel``: what is to be cancelled.

    At least one field, or everything would be.
    """

    api_key_id: Text | None = None
    skill_id: UUID | None = None
    skill_name: Text | None = None
    status: Literal["pending", "running"] | None = None
    session_id: Text | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    @model_validator(mode="after")
    def narrowed(self) -> "CancelRequest":
        """Insist on some field."""
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(
                "say what to cancel: one of skillName, skillId, sessionId, status, since, until, "
                "apiKeyId at least"
            )
        return self


class CancelledAnswer(Model):
    """How many were cancelled: ended at once, and running, which end as their workers hear."""

    ended: int
    stopping: int


class SkillAnswer(Model):
    """One skill."""

    skill: Skill


class InstallAnswer(Model):
    """A skill that was just installed."""

    success: Literal[True] = True
    id: str
    skill: Skill


class SkillVersions(Model):
    """The versions of a skill that an owner sees, highest first."""

    name: str
    data: list[Skill]


class Done(Model):
    """It is done."""

    success: Literal[True] = True


class Removed(Done):
    """It is done; ``removed`` says how many went."""

    removed: int


class Page(Model, Generic[T]):
    """A part of a list.

    ``total`` and ``totalPages`` are counted only when ``page`` or ``count=true`` was asked for;
    ``nextCursor`` leads to what follows, null at the end.
    """

    data: list[T]
    total: int | None = None
    page: int | None = None
    limit: int
    total_pages: int | None = None
    next_cursor: str | None = None


class ExecutionPage(Page[Execution]):
    """Executions, newest first."""


class SkillPage(Page[Skill]):
    """Skills by name."""


class ApiKey(Model):
    """An API key without the key: ``id`` is the owner of what is done with it.

    ``concurrencyLimit`` is how many of its executions run at once, ``rateLimit`` how many it may
    submit in a minute, ``weight`` its share of the turns where many wait (1 is everybody's).
    """

    id: str
    name: str
    scopes: list[str]
    allowed_skills: list[str] | None
    concurrency_limit: int | None
    rate_limit: int | None
    weight: float
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class ApiKeyMade(ApiKey):
    """A key that was just made; ``key`` is shown this once."""

    key: str


class ApiKeyPage(Page[ApiKey]):
    """API keys, newest first."""


class ApiKeyCreate(Model):
    """The body of ``POST /api/skills/keys``; ``allowedSkills`` null or absent means all."""

    name: Text
    scopes: list[Scope] = Field(min_length=1, max_length=16)
    allowed_skills: list[Text] | None = Field(None, max_length=1000)
    expires_at: AwareDatetime | None = None
    concurrency_limit: Concurrency | None = None
    rate_limit: RateLimit | None = None
    weight: Weight = 1.0


class ApiKeyChange(Model):
    """The body of ``PUT /api/skills/keys/{id}``: only what is sent changes; null means no limit."""

    name: Text | None = None
    concurrency_limit: Concurrency | None = None
    rate_limit: RateLimit | None = None
    weight: Weight | None = None

    @model_validator(mode="after")
    def complete(self) -> "ApiKeyChange":
        """Refuse null where it would mean nothing."""
        for field in ("name", "weight"):
            if field in self.model_fields_set and getattr(self, field) is None:
                raise ValueError(f"{field} can't be null; leave it out to keep it")
        return self


class Health(Model):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Readiness(Model):
    """Requests can be taken; without Redis they are kept and run later."""

    status: Literal["ok"] = "ok"
    postgres: Literal["ok"] = "ok"
    redis: Literal["ok", "degraded"]


class Violation(Model):
    """One thing that is wrong: ``pointer`` (RFC 6901) says where, ``in`` of which part."""

    pointer: str
    message: str
    where: str | None = Field(None, alias="in")


class Problem(Model):
    """An error as RFC 9457 has it, with ``error`` (the detail again) and ``code``."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    error: str
    code: str
    violations: list[Violation] | None = None
    known_handlers: list[str] | None = None


class BatchAccepted(Model):
    """One of many that was taken: ``status`` is what a submit alone would have answered."""

    status: Literal[200, 202]
    execution: Execution
    warnings: list[Warned] | None = None
    replayed: bool = False


class BatchRefused(Problem):
    """One of many that was not taken, as the problem that a submit alone would have met."""


class BatchAnswer(Model):
    """One result for each execution asked for, in the same order."""

    results: list[BatchAccepted | BatchRefused]
