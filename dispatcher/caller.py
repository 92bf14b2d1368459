"""Who asks: what a credential turned out to mean."""

from dataclasses import dataclass

from shared.errors import Forbidden
from shared.models import SYSTEM, Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller. ``owner`` is whose skills and executions it acts on.

    ``allowed_skills`` narrows what a key may use, by name or ``name@version``; None is all.
    """

    owner: str
    actor: str
    scopes: frozenset[str]
    management: bool = False
    allowed_skills: frozenset[str] | None = None
    surface: str = "rest"

    def acting_for(self, api_key_id: str | None) -> str:
        """Return the owner to act for; only management may name another than its own.

        A key that names another is not refused but answered as itself: the field of the seeds'
        requests is no credential.
        """
        return api_key_id if self.management and api_key_id else self.owner

    def seeing(self, api_key_id: str | None) -> str | None:
        """Return whose executions a read is limited to; None, every owner's, for management."""
        return api_key_id if self.management else self.owner

    def require(self, scope: str) -> None:
        """Raise Forbidden unless the caller has the scope; management has all."""
        if not self.management and scope not in self.scopes:
            raise Forbidden(f"This credential lacks the scope {scope}")

    def allows(self, skill: Skill) -> bool:
        """Tell whether the key's list has the skill; what it has not does not exist for the key."""
        allowed = self.allowed_skills
        return allowed is None or not allowed.isdisjoint((skill.name, skill.identity))


LIBRARY = Caller(
    owner=SYSTEM, actor="library", scopes=frozenset(), management=True, surface="library"
)
"""The caller in this same process: it has the database already, so it may do everything."""
