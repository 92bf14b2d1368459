"""Compiled schemas of skills, kept for as long as the skill stands as it is."""

from typing import Literal

from shared.models import Skill
from shared.schemas import Validator, compiled

MOST = 10_000
"""Schemas kept: a bound for fleets with very many skills."""

Side = Literal["input", "output"]


class Validators:
    """One process's compiled schemas, by skill, its last change, and side."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[object, ...], Validator] = {}

    def of(self, skill: Skill, side: Side) -> Validator:
        """Return the validator of the skill's input or output schema."""
        at = (skill.id, skill.updated_at, side)
        found = self._compiled.get(at)
        if found is None:
            if len(self._compiled) >= MOST:
                self._compiled.clear()
            found = self._compiled[at] = compiled(skill.skill_schema.get(side) or {})
        return found
