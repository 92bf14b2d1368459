"""The registry's state at one epoch: where things are looked up, and its form in Redis."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from pydantic import TypeAdapter

from shared import skills, versions
from shared.announce import HandlerInfo
from shared.errors import SkillDisabled, SkillNotFound
from shared.live import LiveSettings
from shared.models import SYSTEM, Skill
from shared.pauses import Pause

HANDLER_INFO = TypeAdapter(HandlerInfo)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one epoch. ``by_name`` holds every owner's, highest version first."""

    epoch: int
    settings: LiveSettings
    handlers: Mapping[str, HandlerInfo]
    by_id: Mapping[UUID, Skill]
    by_name: Mapping[str, list[Skill]]
    pauses: frozenset[Pause] = frozenset()

    def versions(self, name: str, owner: str) -> list[Skill]:
        """Return what an owner sees under a name, highest first, its own before system's."""
        seen: dict[str, Skill] = {}
        for skill in self.by_name.get(name, ()):
            if skill.api_key_id == owner or (
                skill.api_key_id == SYSTEM and skill.version not in seen
            ):
                seen[skill.version] = skill
        return list(seen.values())

    def resolve(
        self, wanted: str | UUID, owner: str, allows: Callable[[Skill], bool] = lambda _: True
    ) -> Skill:
        """Return the skill that an id, a name, ``name@version`` or ``name@constraint`` means.

        What ``allows`` refuses is as if it were not there. Raises SkillNotFound when the owner sees
        none, SkillDisabled when all it sees are off.
        """
        if isinstance(wanted, UUID):
            skill = self.by_id.get(wanted)
            seen = [skill] if skill and skill.api_key_id in (owner, SYSTEM) else []
            found = [skill for skill in seen if allows(skill)]
        else:
            found = self._named(wanted, owner, allows)
        if not found:
            raise SkillNotFound(str(wanted))
        for skill in found:
            if skill.callable:
                return skill
        raise SkillDisabled(str(wanted))

    def _named(self, wanted: str, owner: str, allows: Callable[[Skill], bool]) -> list[Skill]:
        name, constraint = versions.split(wanted)
        found = [skill for skill in self.versions(name, owner) if allows(skill)]
        if constraint is None:
            return found
        # Two looks at most, however many versions there are: each takes some 25 µs a version.
        for among in ([skill for skill in found if skill.callable], found):
            by_version = {skill.version: skill for skill in among}
            if (best := versions.resolve(constraint, by_version)) is not None:
                return [by_version[best]]
        return []


def build(
    epoch: int,
    settings: LiveSettings,
    handlers: Iterable[HandlerInfo],
    found: list[Skill],
    pauses: Iterable[Pause] = (),
) -> Snapshot:
    """Index the skills by id and by name."""
    by_name: dict[str, list[Skill]] = {}
    for skill in skills.newest_first(found):
        by_name.setdefault(skill.name, []).append(skill)
    return Snapshot(
        epoch,
        settings,
        {h.name: h for h in handlers},
        {s.id: s for s in found},
        by_name,
        frozenset(pauses),
    )


def encode(snapshot: Snapshot) -> bytes:
    """Return ``<epoch> <msgpack>``; the number in front is what STORE compares."""
    body = msgspec.msgpack.encode(
        (
            snapshot.settings.wire(),
            [HANDLER_INFO.dump_python(info, mode="json") for info in snapshot.handlers.values()],
            [skill.wire() for skill in snapshot.by_id.values()],
            sorted(snapshot.pauses),
        )
    )
    return str(snapshot.epoch).encode() + b" " + body


def decode(data: bytes) -> Snapshot:
    """Read a snapshot and validate every entry; raise ValueError for anything that is not one."""
    head, _, body = data.partition(b" ")
    settings, handlers, found, pauses = msgspec.msgpack.decode(
        body, type=tuple[dict[str, Any], list[Any], list[Any], list[tuple[str, str]]]
    )
    return build(
        int(head),
        LiveSettings.model_validate(settings),
        [HANDLER_INFO.validate_python(info) for info in handlers],
        [Skill.model_validate(skill) for skill in found],
        pauses,
    )
