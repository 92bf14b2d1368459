"""Who is calling: the management token or an API key, from the Authorization header alone."""

import asyncio
import hashlib
import hmac
import re

import structlog
from starlette.datastructures import Headers

from dispatcher.caller import Caller
from dispatcher.dispatcher import Dispatcher
from shared import keys
from shared.errors import ConfigurationError, SkillfleetError, Unauthenticated
from shared.keys import Key
from shared.models import SYSTEM
from shared.settings import Settings

log = structlog.get_logger(__name__)

BEARER = re.compile(r"bearer +([\x21-\x7e]{1,512})", re.IGNORECASE)
"""One token of printable ASCII without blanks; anything else is not a credential."""

REFUSED = "Send a valid credential: Authorization: Bearer <API key or management token>"
"""The same for every reason, so that nobody learns which keys once were."""

TOUCH_S = 60.0
"""How often, in seconds, a process notes that a key is used."""


class Gate:
    """Turns headers into a Caller. Keys are remembered until anything in the registry changes.

    A revocation raises the registry's epoch, so it counts at once, everywhere.
    """

    def __init__(self, dispatcher: Dispatcher, settings: Settings) -> None:
        self._dispatcher = dispatcher
        self._management = management_digest(settings)
        self._epoch = -1
        self._known: dict[bytes, Key] = {}
        self._touched: dict[str, float] = {}
        self._touching: set[asyncio.Task[None]] = set()

    async def authenticate(self, headers: Headers) -> Caller:
        """Return the caller; raise Unauthenticated, or Unavailable when keys can't be read."""
        digest = keys.hashed(token(headers))
        if self._management is not None and hmac.compare_digest(digest, self._management):
            return MANAGEMENT
        key = await self._find(digest)
        if key is None or not key.usable():
            raise Unauthenticated(REFUSED)
        self._touch(key.id)
        return caller(key)

    async def close(self) -> None:
        """Wait for notes that are still being written."""
        if self._touching:
            await asyncio.wait(self._touching)

    async def _find(self, digest: bytes) -> Key | None:
        snapshot = await self._dispatcher.registry.snapshot()
        if snapshot.epoch != self._epoch:
            self._epoch, self._known = snapshot.epoch, {}
        known = self._known
        if digest not in known:
            found = await keys.by_hash(self._dispatcher.pool, digest)
            if found is None:
                return None
            # Into the dict of the epoch it was asked under: if another began since, nobody sees it.
            known[digest] = found
        return known[digest]

    def _touch(self, key_id: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._touched.get(key_id, -TOUCH_S) < TOUCH_S:
            return
        self._touched[key_id] = now
        task = asyncio.create_task(self._note(key_id), name="key-touch")
        self._touching.add(task)
        task.add_done_callback(self._touching.discard)

    async def _note(self, key_id: str) -> None:
        try:
            await keys.touch(self._dispatcher.pool, key_id)
        except SkillfleetError as error:
            log.debug("auth.touch.failed", key_id=key_id, error=type(error).__name__)


MANAGEMENT = Caller(
    owner=SYSTEM, actor="management", scopes=frozenset(keys.SCOPES), management=True
)
"""Who holds the management token."""


def token(headers: Headers) -> str:
    """Return the one bearer token of a request; raise Unauthenticated when there is none."""
    sent = headers.getlist("authorization")
    match = BEARER.fullmatch(sent[0]) if len(sent) == 1 else None
    if match is None:
        raise Unauthenticated(REFUSED)
    return match[1]


def caller(key: Key) -> Caller:
    """Return what a key may do; ``manage`` makes it an operator's."""
    return Caller(
        owner=key.id,
        actor=f"key:{key.id}",
        scopes=key.scopes,
        management="manage" in key.scopes,
        allowed_skills=key.allowed_skills,
    )


def management_digest(settings: Settings) -> bytes | None:
    """Return the SHA-256 of the management token; None, and a warning, when there is none.

    Raises ConfigurationError for a token that no request could carry.
    """
    secret = settings.management.token.get_secret_value() if settings.management.token else ""
    if not secret:
        log.warning(
            "auth.management.off", hint="Set SKILLS_MANAGEMENT_TOKEN to manage skills over HTTP"
        )
        return None
    if not BEARER.fullmatch(f"Bearer {secret}"):
        raise ConfigurationError(
            "SKILLS_MANAGEMENT_TOKEN must be 1 to 512 printable ASCII characters without blanks"
        )
    return hashlib.sha256(secret.encode()).digest()
