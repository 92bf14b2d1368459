"""Every error of the product, in one tree.

::

    SkillfleetError                      code, status, retryable; its text is what callers read
    ├── BadRequest            400        the request can't be understood
    │   └── UnknownHandler    400        UNKNOWN_SKILL_HANDLER: never announced by a worker
    ├── Unauthenticated       401        no credential, or one that does not count
    ├── Forbidden             403        a good credential without the right
    ├── NotFound              404        no such thing, for this caller
    │   └── SkillNotFound     404
    ├── Conflict              409        the state of things forbids it
    │   ├── SkillDisabled     409
    │   ├── SkillExists       409
    │   ├── AlreadyFinished   409        there is nothing left to cancel
    │   └── IdentityConflict  409        an idempotency key used again with another request
    ├── PayloadTooLarge       413
    ├── UnsupportedMedia      415        the body is of a type nobody reads here
    ├── InvalidInput          422        violations: where, and what is wrong there
    ├── RateLimited           429        after_s: when to come again
    ├── Unavailable           503        retryable: try again later
    │   ├── QueueFull         503        as many wait as may
    │   └── SwitchedOff       503        the master switch
    ├── ConfigurationError               start-up: a setting is wrong
    ├── SchemaOutdated                   start-up: the database needs `skillfleet migrate`
    ├── EngineError                      inside the worker's sandbox: the container engine said no
    └── ExecutionFailed                  raised by a handler: this attempt ends as `error`
        ├── ExecutionTimedOut            ... as `timeout`, with what was printed until then
        ├── EngineLost                   ... its container's engine went away; retryable
        └── Retry                        ... and may be tried again, after `after_s` seconds

Codes are lower snake case; ``UNKNOWN_SKILL_HANDLER`` keeps its upstream spelling.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar


class ErrorCode(StrEnum):
    """Machine-readable causes: in problem documents and in ``skill_executions.error_code``."""

    # requests
    BAD_REQUEST = "bad_request"
    UNKNOWN_SKILL_HANDLER = "UNKNOWN_SKILL_HANDLER"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    SKILL_NOT_FOUND = "skill_not_found"
    SKILL_DISABLED = "skill_disabled"
    SKILL_EXISTS = "skill_exists"
    CONFLICT = "conflict"
    IDENTITY_CONFLICT = "identity_conflict"
    ALREADY_FINISHED = "already_finished"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID_INPUT = "invalid_input"
    INVALID_SCHEMA = "invalid_schema"
    SKILLS_DISABLED = "skills_disabled"
    UNAVAILABLE = "unavailable"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    NO_WORKER = "no_worker"
    INTERNAL = "internal"
    # endings of an execution
    HANDLER_FAILED = "handler_failed"
    INVALID_OUTPUT = "invalid_output"
    OUTPUT_TOO_LARGE = "output_too_large"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    WORKER_LOST = "worker_lost"
    # sandbox
    NONZERO_EXIT = "nonzero_exit"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    ENGINE_LOST = "engine_lost"
    IMAGE_NOT_ALLOWED = "image_not_allowed"
    IMAGE_UNAVAILABLE = "image_unavailable"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    # files
    PATH_REJECTED = "path_rejected"
    FILE_NOT_FOUND = "file_not_found"
    FILE_EXISTS = "file_exists"
    FILE_TOO_LARGE = "file_too_large"


class SkillfleetError(Exception):
    """The root: carries what the face that meets it needs to answer."""

    code: ErrorCode = ErrorCode.INTERNAL
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def message(self) -> str:
        """Return the sentence that the caller reads."""
        return str(self)


class BadRequest(SkillfleetError):
    """The request can't be understood as it stands."""

    code = ErrorCode.BAD_REQUEST
    status = 400


class UnknownHandler(BadRequest):
    """A skill names a handler that no worker has ever announced."""

    code = ErrorCode.UNKNOWN_SKILL_HANDLER

    def __init__(self, handler: str, known: Sequence[str]) -> None:
        listed = ", ".join(known) or "none yet: start a worker first"
        super().__init__(f"Unknown skill handler: {handler}. Known handlers: {listed}")
        self.known = tuple(known)


class Unauthenticated(SkillfleetError):
    """No credential came with the request, or one that does not count."""

    code = ErrorCode.UNAUTHENTICATED
    status = 401


class Forbidden(SkillfleetError):
    """The credential is good but lacks the right."""

    code = ErrorCode.FORBIDDEN
    status = 403


class NotFound(SkillfleetError):
    """There is no such thing, as far as this caller may know."""

    code = ErrorCode.NOT_FOUND
    status = 404


class SkillNotFound(NotFound):
    """No visible skill answers to that id, name or version constraint."""

    code = ErrorCode.SKILL_NOT_FOUND

    def __init__(self, wanted: str) -> None:
        super().__init__(f"Skill not found: {wanted}")


class Conflict(SkillfleetError):
    """The state of things forbids it."""

    code = ErrorCode.CONFLICT
    status = 409


class SkillDisabled(Conflict):
    """Every version that would answer is disabled or off."""

    code = ErrorCode.SKILL_DISABLED

    def __init__(self, wanted: str) -> None:
        super().__init__(f"Skill is disabled: {wanted}")


class SkillExists(Conflict):
    """That owner has that name and version already."""

    code = ErrorCode.SKILL_EXISTS

    def __init__(self, name: str, version: str) -> None:
        super().__init__(
            f"Skill exists already: {name}@{version}. Raise the version, or send replace: true"
        )


class AlreadyFinished(Conflict):
    """What is to be cancelled has ended by itself."""

    code = ErrorCode.ALREADY_FINISHED

    def __init__(self, status: str) -> None:
        super().__init__(f"The execution has ended already, as {status}; nothing is left to cancel")


class IdentityConflict(Conflict):
    """An idempotency key came again with a different request."""

    code = ErrorCode.IDENTITY_CONFLICT

    def __init__(self) -> None:
        super().__init__(
            "This idempotency key was used for a different request. "
            "Use a new key, or repeat the same skill and input"
        )


class PayloadTooLarge(SkillfleetError):
    """A body or an input is above its limit."""

    code = ErrorCode.PAYLOAD_TOO_LARGE
    status = 413


class UnsupportedMedia(SkillfleetError):
    """The body's content type is not one that is read here."""

    code = ErrorCode.UNSUPPORTED_MEDIA_TYPE
    status = 415


class InvalidInput(SkillfleetError):
    """The request is understood, but parts of it are wrong; each is named by its JSON pointer."""

    code = ErrorCode.INVALID_INPUT
    status = 422

    def __init__(
        self,
        message: str,
        violations: Sequence[Mapping[str, str]] = (),
        *,
        code: ErrorCode | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.violations = tuple(dict(violation) for violation in violations)


class RateLimited(SkillfleetError):
    """The owner submits faster than its key may; in ``after_s`` seconds it may again."""

    code = ErrorCode.RATE_LIMITED
    status = 429
    retryable = True

    def __init__(self, limit: int, after_s: float) -> None:
        wait = f"Wait {after_s:.1f} seconds, or have an operator raise its rateLimit"
        super().__init__(f"This key may submit {limit} executions a minute. {wait}")
        self.after_s = after_s


class Unavailable(SkillfleetError):
    """A part the request needs is away; the same request may succeed later."""

    code = ErrorCode.UNAVAILABLE
    status = 503
    retryable = True


class SwitchedOff(Unavailable):
    """The master switch ``skillsEnabled`` is off."""

    code = ErrorCode.SKILLS_DISABLED
    retryable = False

    def __init__(self) -> None:
        super().__init__(
            "Skills execution is disabled. An operator can enable it with "
            "`skillfleet settings set skillsEnabled true`"
        )


class QueueFull(Unavailable):
    """As many executions wait as the setting ``queueLimit`` allows."""

    code = ErrorCode.QUEUE_FULL

    def __init__(self, queue: str, limit: int) -> None:
        wait = "Try again later; an operator can add workers, or raise queueLimit"
        super().__init__(f"{limit} executions or more wait in the queue {queue}. {wait}")


class ConfigurationError(SkillfleetError):
    """A setting is wrong or unknown; the process does not start."""


class SchemaOutdated(SkillfleetError):
    """The database's schema is older than this program needs."""

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(
            f"The database {f'schema is at {found}' if found else 'has no schema yet'}, "
            f"this program needs {needed}. "
            "Run `skillfleet migrate` with the same SKILLS_DATABASE_URL, then start again"
        )


class EngineError(SkillfleetError):
    """The container engine refused a call (``answer``: its HTTP status) or is away (None)."""

    code = ErrorCode.SANDBOX_UNAVAILABLE

    def __init__(self, message: str, *, answer: int | None) -> None:
        super().__init__(message)
        self.answer = answer


class ExecutionFailed(SkillfleetError):
    """Raised by a handler: ends this attempt as ``error`` with ``code`` and, if given, its output.

    ``retryable`` failures are tried again when the skill is idempotent and its budget allows;
    ``nothing_ran`` ones for every skill, since no effect can have happened.
    """

    code = ErrorCode.HANDLER_FAILED

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        output: Mapping[str, Any] | None = None,
        nothing_ran: bool = False,
    ) -> None:
        super().__init__(message, code=code)
        self.output = output
        self.nothing_ran = nothing_ran


class ExecutionTimedOut(ExecutionFailed):
    """Raised by a handler that keeps its own deadline, to hand over what it has so far."""

    code = ErrorCode.TIMED_OUT

    def __init__(self, output: Mapping[str, Any] | None = None) -> None:
        super().__init__("Skill execution timed out", output=output)


class EngineLost(ExecutionFailed):
    """The engine went away while the program ran: nobody knows how far it got."""

    code = ErrorCode.ENGINE_LOST
    retryable = True


class Retry(ExecutionFailed):
    """Raised by a handler on a transient failure; ``after_s`` overrides the backoff (seconds)."""

    retryable = True

    def __init__(self, message: str = "Transient failure", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
