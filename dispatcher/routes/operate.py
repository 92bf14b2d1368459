"""Operating over HTTP: run-time settings, API keys."""

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from dispatcher.answers import (
    ApiKey,
    ApiKeyChange,
    ApiKeyCreate,
    ApiKeyMade,
    ApiKeyPage,
    Done,
)
from dispatcher.paging import Asked, decode, page_of
from dispatcher.routing import Doors, Who, add, answer
from shared import keys, live
from shared.errors import BadRequest, InvalidInput, NotFound
from shared.keys import Key
from shared.live import LiveSettings

SETTINGS, KEYS = "/api/skills/settings", "/api/skills/keys"

CHANGES = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/LiveSettings"}}},
    }
}


def register(app: FastAPI) -> None:
    """Add the routes. All are an operator's."""
    add(app, "GET", SETTINGS, get_settings, scope="manage", answer=LiveSettings, tags=["settings"])
    add(
        app, "PUT", SETTINGS, put_settings, scope="manage", answer=LiveSettings, tags=["settings"],
        extra=CHANGES,
    )  # fmt: skip
    add(app, "GET", KEYS, list_keys, scope="manage", answer=ApiKeyPage, tags=["keys"])
    add(app, "POST", KEYS, create_key, scope="manage", answer=ApiKeyMade, status=201, tags=["keys"])
    add(
        app, "PUT", KEYS + "/{key_id:path}", change_key, scope="manage", answer=ApiKey,
        refuses=(404,), tags=["keys"],
    )  # fmt: skip
    add(
        app, "DELETE", KEYS + "/{key_id:path}", revoke_key, scope="manage", answer=Done,
        refuses=(404,), tags=["keys"],
    )  # fmt: skip


async def get_settings(dispatcher: Doors) -> Response:
    """Return the run-time settings; secrets are masked."""
    return answer((await live.read(dispatcher.pool)).masked())


async def put_settings(changes: dict[str, Any], dispatcher: Doors, caller: Who) -> Response:
    """Change run-time settings, in force everywhere at once; null takes the default back."""
    if not changes:
        raise BadRequest("There is nothing to change. Send at least one setting")
    stored = await live.put(dispatcher.pool, changes, caller.actor)
    await dispatcher.registry.changed()
    return answer(stored.masked())


async def list_keys(dispatcher: Doors, asked: Asked) -> Response:
    """List the API keys, newest first; the keys themselves are not stored anywhere."""
    found = sorted(await keys.list_all(dispatcher.pool), key=place, reverse=True)
    if asked.cursor is not None:
        behind = tuple(decode(asked.cursor, str, str))
        found = [key for key in found if place(key) < behind]
    rows = [view(key) for key in found[asked.offset :][: asked.fetch]]

    async def count() -> int:
        return len(found)

    return answer(
        await page_of(
            ApiKeyPage, asked, rows, lambda row: [row.created_at.isoformat(), row.id], count
        )
    )


async def create_key(asked: ApiKeyCreate, dispatcher: Doors) -> Response:
    """Make an API key. The answer holds it this once; only its SHA-256 is stored."""
    if asked.expires_at and asked.expires_at <= datetime.now(UTC):
        violation = {"pointer": "/expiresAt", "message": "lies in the past", "in": "body"}
        raise InvalidInput("The key would be expired from the start", [violation])
    key, secret = await keys.create(
        dispatcher.pool,
        asked.name,
        asked.scopes,
        allowed_skills=asked.allowed_skills,
        expires_at=asked.expires_at,
        concurrency_limit=asked.concurrency_limit,
        rate_limit=asked.rate_limit,
        weight=asked.weight,
    )
    await dispatcher.registry.changed()
    return answer(ApiKeyMade(**view(key).model_dump(), key=secret), 201)


async def change_key(key_id: str, asked: ApiKeyChange, dispatcher: Doors, caller: Who) -> Response:
    """Change a key's name, limits or weight, in force everywhere at once; null is no limit."""
    changes = asked.model_dump(exclude_unset=True)
    if not changes:
        raise BadRequest("There is nothing to change. Send at least one field")
    key = await keys.change(dispatcher.pool, key_id, changes, caller.actor)
    await dispatcher.registry.changed()
    return answer(view(key))


async def revoke_key(key_id: str, dispatcher: Doors) -> Response:
    """Revoke an API key for ever, everywhere at once."""
    if not await keys.revoke(dispatcher.pool, key_id):
        raise NotFound(f"API key not found: {key_id}")
    await dispatcher.registry.changed()
    return answer(Done())


def view(key: Key) -> ApiKey:
    """Return what is shown of a key."""
    shown = {name: getattr(key, name) for name in ApiKey.model_fields}
    allowed = None if key.allowed_skills is None else sorted(key.allowed_skills)
    return ApiKey(**{**shown, "scopes": sorted(key.scopes), "allowed_skills": allowed})


def place(key: Key) -> tuple[str, str]:
    """Return what the list is sorted by; all times are UTC, so their texts sort like them."""
    return key.created_at.isoformat(), key.id
