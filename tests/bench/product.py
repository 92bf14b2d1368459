"""What only the product is asked: how long a caller waits, alone and beside an owner who floods."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dispatcher import Client, Dispatcher
from shared.settings import load
from tests.bench.measure import Bench, bench, percentiles
from tests.bench.ours.library import SKILL
from tests.bench.servers import Servers
from tests.bench.systems import LIBRARY, REST, SYSTEMS
from tests.services import MANAGEMENT_TOKEN

CALLS = 500
FLOOD = 10_000
GAP_S = 0.002
BUSY_MS = 20
SLOTS = 32
"""What a worker runs at once by default; a flood is met by default settings."""


def waiting(servers: Servers, scale: float) -> dict[str, Any]:
    """Return a lone caller's times for submit-and-wait, in ms, over REST and by the library."""
    calls = max(20, round(CALLS * scale))
    system = next(system for system in SYSTEMS if system.name == REST)
    with bench(system, servers) as made, made.serving(1, 1):
        return asyncio.run(waited(made, calls))


async def waited(made: Bench, calls: int) -> dict[str, Any]:
    """Call by turns, so that whatever else the machine does meets both alike."""
    settings = load(database={"url": made.url}, redis={"url": made.servers.redis_url})
    times: dict[str, list[float]] = {"rest": [], "library": []}
    async with (
        Client(f"http://127.0.0.1:{made.port}", MANAGEMENT_TOKEN) as client,
        Dispatcher.open(settings) as library,
    ):
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "rest": lambda: client.submit(SKILL, {}),
            "library": lambda: library.submit(SKILL, {}),
        }
        for turn in range(calls + 20):
            for way, call in ways.items():
                took = await timed(call)
                if turn >= 20:
                    times[way].append(took)
    return {way: percentiles(taken) for way, taken in times.items()}


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Return the milliseconds of one call, which has to end well."""
    began = time.perf_counter()
    execution = await call()
    if execution.status != "success":
        raise RuntimeError(f"{execution.status}: {execution.error_message}")
    return (time.perf_counter() - began) * 1000


def fairness(servers: Servers, scale: float) -> dict[str, Any]:
    """Return one owner's times alone and while another's flood drains, and their p95's ratio.

    Twice: with a handler that does nothing, so that the flood takes every CPU there is, and with
    one that takes BUSY_MS, as tools do.
    """
    system = next(system for system in SYSTEMS if system.name == LIBRARY)
    found = {}
    for name, input in (("no-op", {"ms": 0}), (f"{BUSY_MS} ms", {"ms": BUSY_MS})):
        with bench(system, servers) as made:
            made.concurrency = SLOTS
            with made.serving(2, 1):
                found[name] = asyncio.run(beside(made, input, max(200, round(FLOOD * scale))))
    return found


async def beside(made: Bench, input: dict[str, Any], flood: int) -> dict[str, Any]:
    """Call alone, then beside the flood until it has drained."""
    settings = load(database={"url": made.url}, redis={"url": made.servers.redis_url})
    async with Dispatcher.open(settings) as dispatcher:
        await made.install(dispatcher, "bench-busy")

        async def call() -> float:
            await asyncio.sleep(GAP_S)
            return await timed(lambda: dispatcher.submit("bench-busy", input, api_key_id="one"))

        alone = [await call() for _ in range(220)][20:]
        async with Dispatcher.open(settings) as flooding:
            asked = {"skill_name": "bench-busy", "input": input, "api_key_id": "many"}
            for _ in range(flood // 500):
                await flooding.submit_many([asked] * 500)
            meanwhile = [await call()]
            while await dispatcher.pool.fetchval(
                "SELECT EXISTS (SELECT FROM skill_executions "
                "WHERE ended IS NULL AND api_key_id = 'many')"
            ):
                meanwhile.append(await call())
    figures = {"alone_ms": percentiles(alone), "beside_ms": percentiles(meanwhile)}
    ratio = figures["beside_ms"]["p95"] / figures["alone_ms"]["p95"]
    return {**figures, "calls": len(meanwhile), "ratio": round(ratio, 2)}
