"""The values that travel: skills, executions and the requests about them.

Snake case here, camelCase on the wire; times are aware UTC, durations whole milliseconds.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar, get_args
from uuid import UUID

from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from shared.states import TERMINAL, Status
from shared.versions import split

SYSTEM = "system"
"""The owner whose skills every key sees."""

MAX_TIMEOUT_MS = 86_400_000
"""A day: the longest time limit a call or a skill may ask for."""

Mode = Literal["on", "off", "auto"]
Policy = Literal["auto", "manual", "hybrid"]
Priority = Literal["high", "normal", "low"]
Queue = Literal["direct", "sandbox"]
QUEUES: tuple[str, ...] = get_args(Queue)
Source = Literal["skillsmp", "skillssh", "local"]
Scope = Literal["manage", "read:skills", "write:skills", "execute:skills", "approve:executions"]
"""What an API key may be good for; ``manage`` has all of it."""

NAME = r"^@?[A-Za-z0-9_][A-Za-z0-9_.@/-]{0,98}$"
VERSION = r"^[0-9]+\.[0-9]+\.[0-9]+$"

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""An identifier of the caller's: printable, no control characters."""

SkillName = Annotated[str, StringConstraints(pattern=NAME)]
SkillVersion = Annotated[str, StringConstraints(pattern=VERSION, max_length=64)]
TimeoutMs = Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)]
Retries = Annotated[int, Field(ge=0, le=100)]
Concurrency = Annotated[int, Field(ge=1, le=1_000_000)]
RateLimit = Annotated[int, Field(ge=1, le=1_000_000)]
Weight = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]


M = TypeVar("M", bound=BaseModel)


class Model(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def wire(self) -> dict[str, Any]:
        """Return the camelCase form, JSON types only."""
        return self.model_dump(mode="json", by_alias=True)


def trusted(model: type[M], values: dict[str, Any]) -> M:
    """Make a model of values that need no validation, all fields given; takes over the dict.

    What pydantic's ``model_construct`` does, without its look at every field's aliases: 45 of the
    90 µs that a submit took went there.
    """
    made = model.__new__(model)
    for name, value in (
        ("__dict__", values),
        ("__pydantic_fields_set__", set(values)),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
    ):
        object.__setattr__(made, name, value)
    return made


class Skill(Model):
    """A versioned, schema-defined unit of work, as it stands in ``skills``."""

    id: UUID
    api_key_id: str
    name: str
    version: str
    description: str
    skill_schema: dict[str, Any] = Field(alias="schema")
    kind: Literal["handler", "instruction"] = "handler"
    handler: str | None
    enabled: bool
    mode: Mode
    policy: Policy
    source_provider: Source
    tags: tuple[str, ...]
    install_count: int
    timeout_ms: int | None
    max_retries: int | None
    idempotent: bool | None
    retry_on_timeout: bool | None
    concurrency_limit: int | None = None
    created_at: datetime
    updated_at: datetime

    @property
    def identity(self) -> str:
        """Return ``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def callable(self) -> bool:
        """Tell whether an execution of it may be asked for."""
        return self.enabled and self.mode != "off"


class SkillInstall(Model):
    """The body of ``POST /api/skills/install``."""

    name: SkillName
    version: SkillVersion = "1.0.0"
    description: str = Field("", max_length=1024)
    skill_schema: dict[str, Any] = Field(default_factory=dict, alias="schema")
    handler_code: str = Field(
        validation_alias=AliasChoices("handlerCode", "handler", "handler_code"),
        min_length=1,
        max_length=200,
        description="The name of a handler that workers have announced; never source code.",
    )
    api_key_id: Text | None = None
    mode: Mode = "on"
    policy: Policy = "auto"
    tags: tuple[Text, ...] = Field((), max_length=32)
    timeout_ms: TimeoutMs | None = None
    max_retries: Retries | None = None
    idempotent: bool | None = None
    retry_on_timeout: bool | None = None
    concurrency_limit: Concurrency | None = None
    replace: bool = False

    @field_validator("name")
    @classmethod
    def unambiguous(cls, name: str) -> str:
        """Refuse a name whose end reads as a version: nobody could ask for it by name."""
        if split(name)[1] is not None:
            raise ValueError("a name can't end in @ and a version; send the version as `version`")
        return name


class SkillUpdate(Model):
    """The body of ``PUT /api/skills/{id}``: only what is sent changes; null means the default."""

    enabled: bool | None = None
    mode: Mode | None = None
    policy: Policy | None = None
    description: str | None = Field(None, max_length=1024)
    tags: tuple[Text, ...] | None = Field(None, max_length=32)
    timeout_ms: TimeoutMs | None = None
    max_retries: Retries | None = None
    idempotent: bool | None = None
    retry_on_timeout: bool | None = None
    concurrency_limit: Concurrency | None = None

    @model_validator(mode="after")
    def complete(self) -> "SkillUpdate":
        """Refuse null where the column has no default to fall back on."""
        for field in ("enabled", "mode", "policy", "description", "tags"):
            if field in self.model_fields_set and getattr(self, field) is None:
                raise ValueError(f"{to_camel(field)} can't be null; leave it out to keep it")
        return self


class SubmitRequest(Model):
    """The body of ``POST /api/skills/executions``."""

    skill_name: str | None = Field(None, min_length=1, max_length=200)
    skill_id: UUID | None = None
    input: dict[str, Any] = Field(default_factory=dict)
    api_key_id: Text | None = None
    session_id: Text | None = None
    provider: Text | None = None
    model: Text | None = None
    tool_call_id: Text | None = None
    request_identity: Text | None = None
    priority: Priority = "normal"
    timeout_ms: TimeoutMs | None = None
    max_retries: Retries | None = None
    not_before: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    cancel_on_disconnect: bool = False

    @model_validator(mode="after")
    def named(self) -> "SubmitRequest":
        """Insist on one way of naming the skill."""
        if (self.skill_name is None) == (self.skill_id is None):
            raise ValueError("name the skill by skillName or by skillId, one of them")
        return self


class KeyedSubmit(SubmitRequest):
    """One of many submits: what else is a header is a field here."""

    idempotency_key: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$")] | None = Field(
        None, min_length=1, max_length=255
    )


class PendingReason(Model):
    """Why an execution has not started. ``message`` says what it waits for and what can be done.

    ``position`` is its place in line, 1 the next one; ``expectedWaitMs`` how long that takes at the
    rate of the last seconds, null where nothing ended lately; ``at`` a time before which it does
    not start.
    """

    code: Literal[
        "approval",
        "switch_off",
        "queue_paused",
        "skill_paused",
        "owner_paused",
        "not_before",
        "retry_at",
        "no_worker",
        "fleet_limit",
        "owner_limit",
        "skill_limit",
        "queued",
        "queue_unavailable",
    ]
    message: str
    position: int | None = None
    expected_wait_ms: int | None = None
    at: datetime | None = None


class Execution(Model):
    """One run of a skill, as it stands in ``skill_executions``."""

    id: UUID
    skill_id: UUID | None
    skill_name: str
    skill_version: str
    api_key_id: str
    session_id: str | None
    provider: str | None
    model: str | None
    tool_call_id: str | None
    request_identity: str | None
    status: Status
    input: dict[str, Any]
    output: Any
    error_code: str | None
    error_message: str | None
    attempt: int
    attempts: list[dict[str, Any]]
    max_retries: int
    timeout_ms: int | None
    queue: Queue
    priority: Priority
    worker_id: str | None
    not_before: datetime | None
    expires_at: datetime | None
    retry_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_ms: int | None
    cancel_requested_at: datetime | None = None
    cancelled_by: str | None = None
    pending_reason: PendingReason | None = None

    @property
    def finished(self) -> bool:
        """Tell whether the status is final."""
        return self.status in TERMINAL
