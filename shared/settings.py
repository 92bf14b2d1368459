"""The environment, read once into one frozen value.

Names are ``SKILLS_<GROUP>_<FIELD>``; the seeds' names (``SKILLS_MAX_FILE_BYTES``,
``SKILLS_SANDBOX_TIMEOUT_MS``, …) fall out of the groups unchanged. Lists are comma-separated.
What an operator changes while the fleet runs lives in the table ``settings`` instead.
"""

import difflib
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.errors import ConfigurationError

PREFIX = "SKILLS_"
DEFAULT_IMAGES = ("alpine:3.20", "node:22-alpine", "python:3.12-alpine")
"""The seeds' three sandbox images; ``SKILLS_ALLOWED_SANDBOX_IMAGES`` adds to them."""


def split_commas(value: object) -> object:
    """Split ``"a, b,,c"`` into ``["a", "b", "c"]``; anything else passes through."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


CommaList = Annotated[tuple[str, ...], NoDecode]


class Group(BaseModel):
    """One prefix of variables; a field it does not know stops start-up."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Database(Group):
    """Postgres."""

    url: str = "postgresql://localhost/skillfleet"
    pool_size: int = Field(8, ge=2, le=200)
    statement_timeout_ms: int = Field(30_000, ge=100)


class Redis(Group):
    """Redis or Valkey."""

    url: str = "redis://localhost:6379/0"


class Data(Group):
    """Where files live."""

    dir: Path = Path(".skillfleet")


class Management(Group):
    """The credential that may do everything."""

    token: SecretStr | None = None


class Http(Group):
    """The dispatcher's listener."""

    host: str = "127.0.0.1"
    port: int = Field(20128, ge=0, le=65535)
    processes: int = Field(1, ge=1, le=64)


class Max(Group):
    """Sizes."""

    file_bytes: int = Field(1_048_576, ge=1)
    http_response_bytes: int = Field(256_000, ge=1)
    sandbox_output_chars: int = Field(100_000, ge=1)
    input_bytes: int = Field(1_048_576, ge=1)
    output_bytes: int = Field(1_048_576, ge=1)


class Sandbox(Group):
    """Containers."""

    timeout_ms: int = Field(10_000, ge=1)
    network_enabled: bool = False
    runtime: str | None = None
    max_cpu_limit: int = Field(1000, ge=1)
    max_memory_limit: int = Field(1024, ge=6)
    concurrency: int = Field(8, ge=1)
    pull_policy: str = Field("missing", pattern="^(missing|never)$")
    pull_timeout_ms: int = Field(600_000, ge=1000)
    dns: CommaList = ("1.1.1.1", "9.9.9.9")

    split = field_validator("dns", mode="before")(split_commas)


class Allowed(Group):
    """Allowlists."""

    sandbox_images: CommaList = ()

    split = field_validator("sandbox_images", mode="before")(split_commas)


class Handler(Group):
    """Where handlers come from besides the built-ins and entry points."""

    modules: CommaList = ()

    split = field_validator("modules", mode="before")(split_commas)


class Worker(Group):
    """One worker process."""

    queues: CommaList = ("direct", "sandbox")
    concurrency: int = Field(32, ge=1, le=10_000)
    grace_ms: int = Field(20_000, ge=0)
    lease_ms: int = Field(10_000, ge=500)
    sweep_ms: int = Field(500, ge=50)
    poll_ms: int = Field(500, ge=10)

    split = field_validator("queues", mode="before")(split_commas)

    @field_validator("queues")
    @classmethod
    def known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Accept the two queues there are, at least one of them."""
        if not value or set(value) - {"direct", "sandbox"}:
            raise ValueError("name direct, sandbox or both, separated by a comma")
        return value


class Idempotency(Group):
    """How long an idempotency key answers with its execution."""

    ttl_ms: int = Field(86_400_000, ge=1000)


class Log(Group):
    """Logs; the console form is chosen on a terminal unless the format says otherwise."""

    level: str = Field("info", pattern="^(debug|info|warning|error)$")
    format: str = Field("auto", pattern="^(auto|json|console)$")


class Settings(BaseSettings):
    """All of it. Frozen; made in the composition roots and passed down."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        frozen=True,
        extra="forbid",
    )

    database: Database = Database()
    redis: Redis = Redis()
    data: Data = Data()
    management: Management = Management()
    http: Http = Http()
    max: Max = Max()
    sandbox: Sandbox = Sandbox()
    allowed: Allowed = Allowed()
    handler: Handler = Handler()
    worker: Worker = Worker()
    idempotency: Idempotency = Idempotency()
    log: Log = Log()

    @property
    def sandbox_images(self) -> tuple[str, ...]:
        """Return the images a caller may name: the three defaults, then the operator's."""
        return tuple(dict.fromkeys((*DEFAULT_IMAGES, *self.allowed.sandbox_images)))


def variables() -> dict[str, tuple[str, str]]:
    """Map every variable's name to its group and field, for start-up checks and documentation."""
    found = {}
    for group, info in Settings.model_fields.items():
        model = info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            for field in model.model_fields:
                found[f"{PREFIX}{group}_{field}".upper()] = (group, field)
    return found


def load(**overrides: dict[str, Any]) -> Settings:
    """Read the environment; raise ConfigurationError naming the variable and what is wrong.

    ``overrides`` are groups of fields (``http={"port": 0}``) that win over the environment.
    """
    known = variables()
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise ConfigurationError(unknown(name.upper(), list(known)))
    if "DATA_DIR" in os.environ and f"{PREFIX}DATA_DIR" not in os.environ:
        overrides["data"] = {"dir": os.environ["DATA_DIR"], **overrides.get("data", {})}
    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # groups are validated from dicts
    except ValidationError as error:
        raise ConfigurationError(explain(error)) from None


def unknown(name: str, known: list[str]) -> str:
    """Say that a variable does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"Unknown setting {name}. Did you mean {near[0]}? Correct or unset it"


def explain(error: ValidationError) -> str:
    """Turn pydantic's report into one line per variable, without its values."""
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        name = PREFIX + "_".join(str(part) for part in item["loc"][:2]).upper()
        lines.append(f"{name}: {item['msg'].removeprefix('Value error, ')}")
    return "Wrong settings: " + "; ".join(lines)
