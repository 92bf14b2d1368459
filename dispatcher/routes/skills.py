"""Skills over HTTP: list, install, look, change, remove."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.responses import Response

from dispatcher.answers import (
    Done,
    InstallAnswer,
    Removed,
    SkillAnswer,
    SkillPage,
    SkillVersions,
)
from dispatcher.installs import install
from dispatcher.paging import Asked, decode, page_of
from dispatcher.routing import Doors, Who, add, answer
from shared import skills
from shared.errors import BadRequest, SkillNotFound
from shared.models import Mode, SkillInstall, SkillName, SkillUpdate, SkillVersion, Source, Text

PATH = "/api/skills"
TAG = "skills"

OwnerAsked = Annotated[
    Text | None, Query(alias="apiKeyId", description="Act for this owner; for management only.")
]


def register(app: FastAPI) -> None:
    """Add the routes. All are an operator's."""
    one, named = PATH + "/{skill_id:uuid}", PATH + "/{name:path}/versions"
    add(app, "GET", PATH, list_skills, scope="manage", answer=SkillPage, tags=[TAG])
    add(
        app, "POST", f"{PATH}/install", install_skill, scope="manage", answer=InstallAnswer,
        status=201, refuses=(409,), tags=[TAG],
    )  # fmt: skip
    add(app, "GET", one, get_skill, scope="manage", answer=SkillAnswer, refuses=(404,), tags=[TAG])
    add(
        app, "PUT", one, update_skill, scope="manage", answer=SkillAnswer, refuses=(404,),
        tags=[TAG],
    )  # fmt: skip
    add(app, "DELETE", one, remove_skill, scope="manage", answer=Done, refuses=(404,), tags=[TAG])
    add(
        app, "GET", named, list_versions, scope="manage", answer=SkillVersions, refuses=(404,),
        tags=[TAG],
    )  # fmt: skip
    add(
        app, "DELETE", named, unregister_skill, scope="manage", answer=Removed, refuses=(404,),
        tags=[TAG],
    )  # fmt: skip


async def list_skills(
    dispatcher: Doors,
    asked: Asked,
    q: Annotated[
        Text | None, Query(description="Looked for in names, descriptions and tags.")
    ] = None,
    mode: Mode | None = None,
    source: Source | None = None,
) -> Response:
    """List the skills of all owners, by name."""
    pool = dispatcher.pool
    after = decode(asked.cursor, str, str, UUID) if asked.cursor is not None else None
    rows = await skills.page(
        pool,
        q=q,
        mode=mode,
        source=source,
        limit=asked.fetch,
        after=(after[0], after[1], after[2]) if after else None,
        offset=asked.offset,
    )
    return answer(
        await page_of(
            SkillPage,
            asked,
            rows,
            lambda row: [row.name, row.api_key_id, str(row.id)],
            lambda: skills.count(pool, q=q, mode=mode, source=source),
        )
    )


async def install_skill(asked: SkillInstall, dispatcher: Doors, caller: Who) -> Response:
    """Install a skill, or another version of one, for an owner (`system`: for everybody)."""
    made = await install(dispatcher, asked, caller)
    body = InstallAnswer.model_construct(success=True, id=str(made.id), skill=made)
    return answer(body, 201, Location=f"{PATH}/{made.id}")


async def get_skill(skill_id: UUID, dispatcher: Doors) -> Response:
    """Return a skill."""
    return answer(SkillAnswer.model_construct(skill=await skills.get(dispatcher.pool, skill_id)))


async def update_skill(
    skill_id: UUID, changes: SkillUpdate, dispatcher: Doors, caller: Who
) -> Response:
    """Change what is sent of a skill.

    `enabled` alone turns the mode on or off and back to what it was; `mode` alone sets `enabled`;
    both are stored as sent.
    """
    if not changes.model_fields_set:
        raise BadRequest("There is nothing to change. Send at least one field, such as enabled")
    changed = await skills.update(dispatcher.pool, skill_id, changes, caller.actor)
    await dispatcher.registry.changed()
    return answer(SkillAnswer.model_construct(skill=changed))


async def remove_skill(skill_id: UUID, dispatcher: Doors, caller: Who) -> Response:
    """Remove a skill; its executions stay on record."""
    await skills.remove(dispatcher.pool, skill_id, caller.actor)
    await dispatcher.registry.changed()
    return answer(Done())


async def list_versions(
    name: SkillName, dispatcher: Doors, caller: Who, api_key_id: OwnerAsked = None
) -> Response:
    """List the versions of a skill that an owner sees, highest first."""
    found = await dispatcher.versions(name, caller.acting_for(api_key_id))
    if not found:
        raise SkillNotFound(name)
    return answer(SkillVersions.model_construct(name=name, data=list(found)))


async def unregister_skill(
    name: SkillName,
    dispatcher: Doors,
    caller: Who,
    api_key_id: OwnerAsked = None,
    version: Annotated[SkillVersion | None, Query(description="One version; else all.")] = None,
) -> Response:
    """Remove an owner's skill by name: one version, or all of them."""
    owner = caller.acting_for(api_key_id)
    removed = await dispatcher.unregister(name, version, api_key_id=owner, actor=caller.actor)
    if not removed:
        raise SkillNotFound(f"{name}@{version}" if version else name)
    return answer(Removed(removed=removed))
