"""The registry's state at one epoch: where things are looked up, and its form in Redis."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from pydantic import TypeAdapter

from shared import skills, versions
from shared.announce import HandlerInfo
from shared.errors import SkillDisabled, SkillNotFound
from shared.gates import ALL, OWNER, SKILL, Limit
from shared.keys import Share
from shared.live import LiveSettings
from shared.models import SYSTEM, Skill
from shared.pauses import Pause

HANDLER_INFO = TypeAdapter(HandlerInfo)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one epoch. ``by_name`` holds every owner's, highest version first.

    ``by_text`` is ``by_id`` by the ids' texts; ``limited`` tells whether anything has a limit.
    """

    epoch: int
    settings: LiveSettings
    handlers: Mapping[str, HandlerInfo]
    by_id: Mapping[UUID, Skill]
    by_text: Mapping[str, Skill]
    by_name: Mapping[str, list[Skill]]
    pauses: frozenset[Pause] = frozenset()
    shares: Mapping[str, Share] = field(default_factory=dict)
    limited: bool = False

    def limits(self, owner: str, skill: str) -> tuple[Limit, ...]:
        """Return the gates that an owner's execution of a skill, by its id, has to pass."""
        gates = (ALL, OWNER + owner, SKILL + skill)
        limits = ((gate, self.limit(gate)) for gate in gates)
        return tuple(Limit(gate, limit) for gate, limit in limits if limit is not None)

    def limit(self, gate: str) -> int | None:
        """Return how many may run at once at a gate; None when it has no limit."""
        if gate == ALL:
            return self.settings.max_running
        if gate.startswith(OWNER):
            share = self.shares.get(gate.removeprefix(OWNER))
            return share.concurrency_limit if share else None
        skill = self.by_text.get(gate.removeprefix(SKILL))
        return skill.concurrency_limit if skill else None

    def weight(self, owner: str) -> float:
        """Return an owner's share of the turns; 1 is everybody's."""
        share = self.shares.get(owner)
        return share.weight if share else 1.0

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
    shares: Iterable[Share] = (),
) -> Snapshot:
    """Index the skills by id and by name."""
    by_name: dict[str, list[Skill]] = {}
    for skill in skills.newest_first(found):
        by_name.setdefault(skill.name, []).append(skill)
    of = {share.owner: share for share in shares}
    return Snapshot(
        epoch,
        settings,
        {h.name: h for h in handlers},
        {s.id: s for s in found},
        {str(s.id): s for s in found},
        by_name,
        frozenset(pauses),
        of,
        settings.max_running is not None
        or any(skill.concurrency_limit is not None for skill in found)
        or any(share.concurrency_limit is not None for share in of.values()),
    )


def encode(snapshot: Snapshot) -> bytes:
    """Return ``<epoch> <msgpack>``; the number in front is what STORE compares."""
    body = msgspec.msgpack.encode(
        (
            snapshot.settings.wire(),
            [HANDLER_INFO.dump_python(info, mode="json") for info in snapshot.handlers.values()],
            [skill.wire() for skill in snapshot.by_id.values()],
            sorted(snapshot.pauses),
            list(snapshot.shares.values()),
        )
    )
    return str(snapshot.epoch).encode() + b" " + body


def decode(data: bytes) -> Snapshot:
    """Read a snapshot and validate every entry; raise ValueError for anything that is not one."""
    head, _, body = data.partition(b" ")
    settings, handlers, found, pauses, shares = msgspec.msgpack.decode(
        body,
        type=tuple[dict[str, Any], list[Any], list[Any], list[tuple[str, str]], list[Share]],
    )
    return build(
        int(head),
        LiveSettings.model_validate(settings),
        [HANDLER_INFO.validate_python(info) for info in handlers],
        [Skill.model_validate(skill) for skill in found],
        pauses,
        shares,
    )
