"""Redis behind Sentinels: a client that asks them who the master is, each time it connects.

``redis+sentinel://[user:password@]host[:port],host[:port]/<master>[/<db>]``, ``rediss+sentinel://``
for TLS to the servers and the Sentinels. The credentials are the servers'. A master that was
replaced answers READONLY; redis-py takes that for a lost connection, and the next one goes to the
new master.
"""

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
PORT = 26379
FORM = "redis+sentinel://[user:password@]host[:port],host[:port]/<master>[/<db>]"
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")


class Masters(SentinelConnectionPool):
    """Connections to the master, and those to the Sentinels, which go with them."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections; at the end, when none is in use, the Sentinels' too."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


def named(url: str) -> bool:
    """Tell whether the address names Sentinels."""
    return url.startswith(SCHEMES)


def client(url: str, **options: Any) -> Redis:
    """Return a client of the master that the Sentinels name; raise ValueError for a wrong URL.

    ``options`` are those of any connection. Nothing is opened before the first command.
    """
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    parts = [unquote(part) for part in path.partition("?")[0].split("/") if part]
    if not parts or len(parts) > 2 or not (len(parts) == 1 or parts[1].isdecimal()):
        raise ValueError(f"it must read {FORM}")
    user = urlsplit(f"//{credentials}@x") if credentials else None
    secure = {"ssl": True} if scheme.startswith("rediss") else {}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [address(host) for host in hosts.split(",")],
        sentinel_kwargs={
            "socket_connect_timeout": options["socket_connect_timeout"],
            "socket_timeout": options["socket_connect_timeout"],
            **secure,
        },
        db=int(parts[1]) if len(parts) == 2 else 0,
        username=unquote(user.username) if user and user.username else None,
        password=unquote(user.password) if user and user.password else None,
        **secure,
        **options,
    )
    found: Redis = sentinels.master_for(parts[0], connection_pool_class=Masters)
    return found


def address(text: str) -> tuple[str, int]:
    """Return host and port of one Sentinel."""
    match = HOST.fullmatch(text.strip())
    if match is None or int(match[2] or PORT) > 65535:
        raise ValueError(f"{text!r} is no host with a port; it must read {FORM}")
    return match[1].strip("[]"), int(match[2] or PORT)
