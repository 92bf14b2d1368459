"""Redis: the connection, every key and channel with its lifetime, and the listener.

Nothing here outlives its TTL: what Redis holds is a bell, a cache or a claim, never the truth.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from shared import sentinel
from shared.connections import steady
from shared.errors import ConfigurationError
from shared.settings import Settings
from shared.tasks import end

log = structlog.get_logger(__name__)

AWAY = (RedisError, OSError, TimeoutError)
"""What the client raises when Redis is away, failing over or refusing."""

PREFIX = "skillfleet:"

REGISTRY = f"{PREFIX}registry:3"
"""The registry's snapshot: msgpack, REGISTRY_TTL_MS.

The number is its form's: processes of two versions never read each other's.
"""
REGISTRY_TTL_MS = 60_000
REGISTRY_LOCK = f"{PREFIX}registry:3:lock"
"""Held by the one process that loads the snapshot from Postgres."""
REGISTRY_LOCK_TTL_MS = 5_000

BELL_TTL_MS = 60_000
"""A bell nobody heard for a minute is worth nothing: the poll has found the entry by then."""

SHARE_TTL_MS = 24 * 3_600_000
"""Who has had how many turns; it starts anew whenever its queue is empty."""

GATE_TTL_MS = 24 * 3_600_000
"""Who runs and who waits at a limit; the sweep rings again for what was forgotten."""

FINISHED_CHANNEL = f"{PREFIX}finished"
"""Ids of executions that reached an end, separated by blanks."""
CANCEL_CHANNEL = f"{PREFIX}cancel"
"""Ids of running executions that are to be stopped, separated by blanks."""
REGISTRY_CHANNEL = f"{PREFIX}registry:epoch"
"""The newest epoch, after a write."""

QUIET_S = 2.0
MAX_SILENT = 2
"""After each quiet spell a ping; as many without an answer and the connection counts as dead."""

Message = Callable[[str, str], Awaitable[None]]
State = Callable[[bool], Awaitable[None]]


def queue_key(queue: str) -> str:
    """Return the sorted set of a queue: entry id → due time in milliseconds."""
    return f"{PREFIX}queue:{queue}"


def bell_key(queue: str) -> str:
    """Return the list that wakes an idle worker of a queue, BELL_TTL_MS."""
    return f"{PREFIX}bell:{queue}"


def share_key(queue: str) -> str:
    """Return the hash of a queue's turns: priority and owner → next turn, SHARE_TTL_MS."""
    return f"{PREFIX}share:{queue}"


def parked_key(queue: str) -> str:
    """Return the hash of what waits at a limit: entry id → gate, GATE_TTL_MS.

    With ``:gates`` behind it, the set of those gates; with ``:`` and a gate, the sorted set of its
    entry ids by the turn that they had.
    """
    return f"{PREFIX}parked:{queue}"


def running_key(gate: str) -> str:
    """Return the sorted set of what a gate counts: entry id → end of its lease, GATE_TTL_MS."""
    return f"{PREFIX}running:{gate}"


def rate_key(owner: str) -> str:
    """Return the time at which an owner's next submit would come evenly, a minute at most."""
    return f"{PREFIX}rate:{owner}"


def connect(settings: Settings) -> Redis:
    """Make a client; nothing is opened before the first command.

    Raises ConfigurationError for a URL that redis-py can't read.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": 2,
        "socket_timeout": 5,
        "health_check_interval": 15,
        "retry": Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.02), 2),
        "retry_on_error": [ConnectionError],
    }
    url = settings.redis.url
    make = sentinel.client if sentinel.named(url) else Redis.from_url
    try:
        client: Redis = make(url, **options)
    except ValueError as error:
        raise ConfigurationError(f"SKILLS_REDIS_URL is not a Redis URL: {error}") from error
    steady(client.connection_pool)
    return client


class Listener:
    """One subscription per process, kept alive; tells when it hears and when it is deaf."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._messages: dict[str, Message] = {}
        self._states: list[State] = []
        self._task: asyncio.Task[None] | None = None
        self.hearing = asyncio.Event()

    def on(self, channel: str, message: Message) -> None:
        """Call ``message(channel, text)`` for whatever is published there."""
        self._messages[channel] = message

    def on_state(self, state: State) -> None:
        """Call ``state(True)`` when a subscription stands, ``state(False)`` when it fell."""
        self._states.append(state)

    async def start(self) -> None:
        """Begin to listen, and give the first subscription two seconds to stand."""
        self._task = asyncio.create_task(self._loop(), name="redis-listener")
        with suppress(TimeoutError):
            await asyncio.wait_for(self.hearing.wait(), 2)

    async def stop(self) -> None:
        """End the subscription."""
        if self._task:
            await end(self._task)

    async def _loop(self) -> None:
        delay = ExponentialWithJitterBackoff(cap=1.0, base=0.05)
        failures = 0
        while True:
            try:
                await self._listen()
            except AWAY as error:
                log.warning(
                    "redis.listener.lost",
                    error=f"{type(error).__name__}: {error}",
                    hint="Check SKILLS_REDIS_URL and the server; it is tried again",
                )
            except Exception:
                log.exception("redis.listener.failed")
            if self.hearing.is_set():
                failures = 0
                self.hearing.clear()
                await self._tell(False)
            failures += 1
            await asyncio.sleep(delay.compute(failures))

    async def _listen(self) -> None:
        # socket_timeout would end a quiet subscription; the ping below notices a dead one instead.
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(*self._messages)
            waiting = len(self._messages)
            silent = 0
            while True:
                message: dict[str, Any] | None = await pubsub.get_message(timeout=QUIET_S)
                silent = silent + 1 if message is None else 0
                if silent > MAX_SILENT:
                    raise ConnectionError("the subscription does not answer")
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "subscribe":
                    waiting -= 1
                    if not waiting:
                        await self._tell(True)
                        self.hearing.set()
                elif message["type"] == "message":
                    await self._hand(message["channel"].decode(), message["data"])

    async def _hand(self, channel: str, data: bytes) -> None:
        """Pass a message on; whatever somebody published, the subscription stands."""
        try:
            await self._messages[channel](channel, data.decode("utf-8", "replace"))
        except Exception as error:
            log.warning("redis.message.refused", channel=channel, error=type(error).__name__)

    async def _tell(self, hearing: bool) -> None:
        for state in self._states:
            await state(hearing)
