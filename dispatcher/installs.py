"""Installing a skill: its handler is known, its schemas are sound, then it is written."""

from typing import Any

from dispatcher.caller import Caller
from dispatcher.dispatcher import Dispatcher
from shared import announce, skills
from shared.errors import InvalidInput, UnknownHandler
from shared.models import Skill, SkillInstall
from shared.schemas import check_schema, normalise

SIDES = ("input", "output")


async def install(dispatcher: Dispatcher, asked: SkillInstall, caller: Caller) -> Skill:
    """Install for the owner that the caller acts for, and tell the fleet.

    Raises UnknownHandler, InvalidInput with pointers into the body, or SkillExists.
    """
    schema = sound(asked.skill_schema)
    await check_handler(dispatcher, asked.handler_code)
    owned = asked.model_copy(update={"api_key_id": caller.acting_for(asked.api_key_id)})
    made = await skills.install(dispatcher.pool, owned, schema, caller.actor)
    await dispatcher.registry.changed()
    return made


async def check_handler(dispatcher: Dispatcher, handler: str) -> None:
    """Raise UnknownHandler, with those that are known, unless a worker announced it."""
    if handler in (await dispatcher.registry.snapshot()).handlers:
        return
    # A worker that started this moment may be ahead of our snapshot: the table decides.
    known = await announce.names(dispatcher.pool)
    if handler not in known:
        raise UnknownHandler(handler, known)


def sound(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas as JSON Schema; without an output schema any output will do."""
    odd = sorted(set(schema) - set(SIDES))
    if odd:
        found = [violation(f"/{name}", "is neither input nor output") for name in odd]
        raise InvalidInput("A skill's schema has two members, input and output", found)
    asked = {side: schema.get(side) for side in SIDES if side == "input" or schema.get(side)}
    return {side: checked(value, f"/{side}") for side, value in asked.items()}


def checked(schema: Any, place: str) -> dict[str, Any]:
    """Return one schema, repaired and checked; its violations point into the body."""
    try:
        repaired = normalise(schema)
        check_schema(repaired)
    except InvalidInput as error:
        found = [violation(place + v["pointer"], v["message"]) for v in error.violations]
        raise InvalidInput(error.message, found, code=error.code) from None
    return repaired


def violation(pointer: str, message: str) -> dict[str, str]:
    """Point into the body's ``schema``."""
    return {"pointer": f"/schema{pointer}", "message": message, "in": "body"}
