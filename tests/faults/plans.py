"""The faults, drawn at random: each does its harm, waits a while, and puts right what it did."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from tests.factories import redis_to
from tests.faults.cluster import FAKETIME, Cluster
from tests.faults.proxy import Wire
from tests.faults.servers import Server

SHORT_S = (0.1, 1.5)
LONG_S = (0.5, 4.0)
"""How long a fault lasts, in seconds: some pass before anybody notices, some outlive a lease."""

BETWEEN_S = (0.2, 2.0)
JUMPS_S = (-86_400, -30, 30, 3600, 86_400)

Fault = Callable[[Cluster, random.Random], Awaitable[None]]


def one_of_the_rooms(kind: str, number: signal.Signals) -> Fault:
    """Return a fault that ends a room by a signal and starts another."""

    async def end(cluster: Cluster, chance: random.Random) -> None:
        room = chance.choice(getattr(cluster, kind))
        await cluster.replace(room, number)

    return end


def frozen(kind: str) -> Fault:
    """Return a fault that stops a room's time for a while."""

    async def freeze(cluster: Cluster, chance: random.Random) -> None:
        room = chance.choice(getattr(cluster, kind))
        room.process.send_signal(signal.SIGSTOP)
        try:
            await pause(chance, LONG_S)
        finally:
            room.process.send_signal(signal.SIGCONT)

    return freeze


def on_a_wire(harm: Callable[[Wire, random.Random], Awaitable[None]]) -> Fault:
    """Return a fault on one of the four wires, which is mended afterwards."""

    async def hurt(cluster: Cluster, chance: random.Random) -> None:
        wire = chance.choice([*cluster.wires.values()])
        try:
            await harm(wire, chance)
        finally:
            await wire.mend()

    return hurt


async def cut(wire: Wire, chance: random.Random) -> None:
    await wire.cut()
    await pause(chance, LONG_S)


async def flicker(wire: Wire, chance: random.Random) -> None:
    for _ in range(chance.randrange(2, 6)):
        await wire.cut()
        await pause(chance, (0.0, 0.2))
        await wire.mend()
        await pause(chance, (0.0, 0.2))


async def swallow(wire: Wire, chance: random.Random) -> None:
    wire.freeze()
    await pause(chance, LONG_S)


async def slow(wire: Wire, chance: random.Random) -> None:
    wire.delay_s = chance.uniform(0.005, 0.1)
    await pause(chance, LONG_S)


async def flush(cluster: Cluster, _: random.Random) -> None:
    try:
        async with redis_to(cluster.servers.redis_url) as client:
            await client.flushall()
    except (RedisError, OSError):
        return  # it is away by another fault just now


def killed(name: str) -> Fault:
    """Return a fault that ends a server like a power cut does; it comes back on its data."""

    async def kill(cluster: Cluster, chance: random.Random) -> None:
        server: Server = getattr(cluster.servers, name)
        await server.kill()
        await pause(chance, SHORT_S)
        await server.start()

    return kill


def restarted(name: str) -> Fault:
    """Return a fault that stops a server and starts it on its data."""

    async def restart(cluster: Cluster, chance: random.Random) -> None:
        server: Server = getattr(cluster.servers, name)
        await server.stop()
        await pause(chance, SHORT_S)
        await server.start()

    return restart


async def redis_paused(cluster: Cluster, chance: random.Random) -> None:
    cluster.servers.redis.signal(signal.SIGSTOP)
    try:
        await pause(chance, LONG_S)
    finally:
        cluster.servers.redis.signal(signal.SIGCONT)


async def rolling(cluster: Cluster, chance: random.Random) -> None:
    for room in [*cluster.workers, *cluster.dispatchers]:
        await cluster.replace(room, signal.SIGTERM)
        await pause(chance, (0.0, 0.5))


async def clock_jumps(cluster: Cluster, chance: random.Random) -> None:
    cluster.turn_clock(chance.choice(JUMPS_S))
    try:
        await pause(chance, LONG_S)
    finally:
        cluster.turn_clock(0)


async def pause(chance: random.Random, between_s: tuple[float, float]) -> None:
    """Let the fault last."""
    await asyncio.sleep(chance.uniform(*between_s))


FAULTS: dict[str, Fault] = {
    "kill a worker": one_of_the_rooms("workers", signal.SIGKILL),
    "stop a worker": one_of_the_rooms("workers", signal.SIGTERM),
    "freeze a worker": frozen("workers"),
    "kill a dispatcher": one_of_the_rooms("dispatchers", signal.SIGKILL),
    "stop a dispatcher": one_of_the_rooms("dispatchers", signal.SIGTERM),
    "freeze a dispatcher": frozen("dispatchers"),
    "restart all rooms by turns": rolling,
    "kill Redis": killed("redis"),
    "restart Redis": restarted("redis"),
    "pause Redis": redis_paused,
    "flush Redis": flush,
    "kill Postgres": killed("postgres"),
    "restart Postgres": restarted("postgres"),
    "cut a wire": on_a_wire(cut),
    "make a wire flicker": on_a_wire(flicker),
    "swallow what a wire carries": on_a_wire(swallow),
    "slow a wire down": on_a_wire(slow),
    "turn a worker's clock": clock_jumps,
}

SERVERS = frozenset(name for name in FAULTS if name.endswith(("Redis", "Postgres")))
"""One of these at a time: a server that is away can't be killed as well."""


def kinds() -> list[str]:
    """Return the faults that can be done here."""
    return [name for name in FAULTS if name != "turn a worker's clock" or FAKETIME.exists()]


async def drawn(cluster: Cluster, chance: random.Random, over: asyncio.Event) -> Counter[str]:
    """Do one fault after the other, now and then two at once, until ``over``; count them."""
    counts: Counter[str] = Counter()
    names = kinds()
    while not over.is_set():
        chosen = [chance.choice(names)]
        if chance.random() < 0.2:
            second = chance.choice(names)
            if not {chosen[0], second} <= SERVERS and second != chosen[0]:
                chosen.append(second)
        counts.update(chosen)
        # Drawn beforehand: what one of them draws must not depend on how they overlap.
        own = [random.Random(chance.random()) for _ in chosen]
        await asyncio.gather(
            *(FAULTS[name](cluster, luck) for name, luck in zip(chosen, own, strict=True))
        )
        await pause(chance, BETWEEN_S)
    return counts
