"""Run-time settings: what an operator changes while the fleet runs, in force everywhere at once."""

from collections.abc import Mapping
from typing import Any, Literal

import asyncpg
from pydantic import Field, ValidationError
from pydantic.alias_generators import to_camel

from shared.db import Pool, reaching, transaction
from shared.errors import InvalidInput
from shared.models import Model, Retries, TimeoutMs

MASK = "********"
SECRETS = ("skillsmp_api_key",)


class LiveSettings(Model):
    """The settings and their defaults; secrets are written, never read back."""

    skills_enabled: bool = True
    skills_provider: Literal["skillsmp", "skillssh"] = "skillsmp"
    skillsmp_api_key: str | None = Field(None, max_length=512)
    execution_timeout_ms: TimeoutMs = 30_000
    max_retries: Retries = 3
    auto_min_score: int = Field(3, ge=0, le=1000)
    auto_max_skills: int = Field(5, ge=0, le=128)
    max_running: int | None = Field(None, ge=1, le=1_000_000)
    queue_limit: int | None = Field(None, ge=1, le=100_000_000)
    tool_aliases: dict[str, str] = Field(default_factory=dict, max_length=1000)

    def masked(self) -> "LiveSettings":
        """Return a copy that only tells whether a secret is set."""
        set_ones = {name: MASK for name in SECRETS if getattr(self, name) is not None}
        return self.model_copy(update=set_ones)


UNKNOWN = "There is no such setting. Use one of " + ", ".join(
    map(to_camel, LiveSettings.model_fields)
)


async def read(pool: "Pool[asyncpg.Record]") -> LiveSettings:
    """Return the settings in force."""
    async with reaching():
        return from_rows(await pool.fetch("SELECT key, value FROM settings"))


def from_rows(rows: "list[asyncpg.Record]") -> LiveSettings:
    """Build the settings from the table's rows; a key of a newer program is left alone."""
    known = {to_camel(name) for name in LiveSettings.model_fields}
    return LiveSettings.model_validate({r["key"]: r["value"] for r in rows if r["key"] in known})


async def put(pool: "Pool[asyncpg.Record]", changes: Mapping[str, Any], actor: str) -> LiveSettings:
    """Store changes (camelCase names) and return all settings; null takes the default back.

    Raises InvalidInput, with a violation for each field, and stores nothing then.
    """
    known = {to_camel(name) for name in LiveSettings.model_fields}
    secrets = {to_camel(name) for name in SECRETS}
    # A secret comes back from readers as its mask; that is not a new one.
    changes = {k: v for k, v in changes.items() if not (k in secrets and v == MASK)}
    try:
        LiveSettings.model_validate(
            {k: v for k, v in changes.items() if v is not None or k not in known}, by_name=False
        )
    except ValidationError as error:
        raise InvalidInput("The settings are not valid", violations(error)) from None
    async with transaction(pool) as connection:
        for name, value in changes.items():
            if value is None:
                await connection.execute("DELETE FROM settings WHERE key = $1", name)
            else:
                await connection.execute(
                    "INSERT INTO settings (key, value, updated_by) VALUES ($1, $2, $3) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
                    "updated_at = clock_timestamp(), updated_by = excluded.updated_by",
                    name,
                    value,
                    actor,
                )
        return from_rows(await connection.fetch("SELECT key, value FROM settings"))


def violations(error: ValidationError) -> list[dict[str, str]]:
    """Turn pydantic's report into JSON pointers and messages."""
    return [
        {
            "pointer": "".join(
                f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in item["loc"]
            ),
            "message": UNKNOWN if item["type"] == "extra_forbidden" else item["msg"],
        }
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
