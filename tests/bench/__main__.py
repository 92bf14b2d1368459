"""``make bench``: the warm direct call, beside what the same servers take for its commits alone.

One client, one call at a time, a custom skill that echoes its input, waiting for the result. The
floor is three single-row commits and two Redis round trips from one connection each: what no
durable execution can go below on these servers.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

from dispatcher import Client, Dispatcher
from shared.settings import load
from tests.services import (
    MANAGEMENT_TOKEN,
    Databases,
    dispatcher_ready,
    free_port,
    services,
    spawn,
    worker_ready,
)

WARM_UP = 50
SKILL = {"name": "bench-echo", "handlerCode": "echo-handler", "schema": {"input": {}, "output": {}}}
TARGET_MS = 25.0
"""The budget of a warm direct call over REST, median, commits included."""


def main(calls: int, as_json: bool) -> None:
    """Measure the three ways alternately on one set of servers and print them."""
    with services(durable=True) as found, tempfile.TemporaryDirectory() as folder:
        databases = Databases(found.database_url)
        url = asyncio.run(databases.create())
        try:
            figures = asyncio.run(measured(url, found.redis_url, Path(folder), calls))
        finally:
            asyncio.run(databases.drop(url))
            databases.close()
    report = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, "
        f"Python {platform.python_version()}",
        "calls": calls,
        "ms": figures,
        "ratioToFloor": {
            way: round(figures[way]["p50"] / figures["floor"]["p50"], 2)
            for way in ("rest", "library")
        },
        "targetMs": TARGET_MS,
    }
    if as_json:
        print(json.dumps(report))
    else:
        show(report)


async def measured(
    database_url: str, redis_url: str, folder: Path, calls: int
) -> dict[str, dict[str, float]]:
    """Return the percentiles of each way, in milliseconds."""
    port = free_port()
    variables = {
        "SKILLS_DATABASE_URL": database_url,
        "SKILLS_REDIS_URL": redis_url,
        "SKILLS_DATA_DIR": str(folder / "data"),
        "SKILLS_MANAGEMENT_TOKEN": MANAGEMENT_TOKEN,
        "SKILLS_HANDLER_MODULES": "worker.samples",
        "SKILLS_WORKER_QUEUES": "direct",
        "SKILLS_HTTP_PORT": str(port),
        "SKILLS_LOG_LEVEL": "warning",
    }
    rooms = [spawn(name, variables, folder) for name in ("dispatcher", "worker")]
    rooms[0].url = f"http://127.0.0.1:{port}"
    settings = load(database={"url": database_url}, redis={"url": redis_url})
    try:
        await dispatcher_ready(rooms[0])
        await worker_ready(rooms[1], database_url)
        async with (
            Client(rooms[0].url, MANAGEMENT_TOKEN) as client,
            Dispatcher.open(settings) as library,
            Redis.from_url(redis_url) as redis,
        ):
            await client.install(SKILL)
            connection = await asyncpg.connect(database_url)
            await connection.execute("CREATE TABLE bench_floor (id bigserial PRIMARY KEY, n int)")
            ways: dict[str, Callable[[int], Awaitable[Any]]] = {
                "rest": lambda n: client.submit("bench-echo", {"n": n}),
                "library": lambda n: library.submit("bench-echo", {"n": n}),
                "floor": lambda n: floor(connection, redis, n),
            }
            figures = await alternately(ways, calls)
            await connection.close()
            return figures
    finally:
        for room in rooms:
            room.end()


async def alternately(
    ways: dict[str, Callable[[int], Awaitable[Any]]], calls: int
) -> dict[str, dict[str, float]]:
    """Call each way in turn, so that whatever else the machine does meets them alike."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for n in range(calls + WARM_UP):
        for way, call in ways.items():
            began = time.perf_counter()
            answer = await call(n)
            took = (time.perf_counter() - began) * 1000
            if answer is not None and answer.status != "success":
                raise SystemExit(f"{way}: {answer.status} {answer.error_message}")
            if n >= WARM_UP:
                times[way].append(took)
    return {way: percentiles(taken) for way, taken in times.items()}


async def floor(connection: Any, redis: Redis, n: int) -> None:
    """Commit three times and go to Redis twice, as an execution must."""
    row = await connection.fetchval("INSERT INTO bench_floor (n) VALUES ($1) RETURNING id", n)
    await redis.ping()
    for value in (1, 2):
        await connection.execute("UPDATE bench_floor SET n = $2 WHERE id = $1", row, value)
    await redis.ping()


def percentiles(times: list[float]) -> dict[str, float]:
    """Return p50, p95 and p99 of milliseconds."""
    cuts = statistics.quantiles(times, n=100)
    return {name: round(cuts[at], 2) for name, at in (("p50", 49), ("p95", 94), ("p99", 98))}


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    table = Table(title=f"Warm direct call, one client, {report['calls']} calls", min_width=60)
    for column in ("way", "p50 ms", "p95 ms", "p99 ms", "p50 over the floor"):
        table.add_column(column)
    for way, figures in report["ms"].items():
        ratio = report["ratioToFloor"].get(way)
        table.add_row(
            way, *(f"{value:.2f}" for value in figures.values()), f"{ratio}x" if ratio else "1x"
        )
    console = Console()
    console.print(report["machine"])
    console.print(table)
    verdict = "met" if report["ms"]["rest"]["p50"] < report["targetMs"] else "MISSED"
    console.print(f"Budget of the REST call: {report['targetMs']} ms median: {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="calls of each way")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    main(arguments.calls, arguments.json)
