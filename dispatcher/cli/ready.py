"""Waiting until a fleet that was just started can do its work, with the reason when it can't."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
from pydantic_core import from_json
from rich.console import Console

from dispatcher.cli.children import Child, ChildFailed
from dispatcher.cli.fleet import Fleet
from shared.settings import DEFAULT_IMAGES

START_S = 60.0
"""Interpreters, pools and handler modules of all rooms, on a slow machine."""
IMAGES_S = 900.0
"""Three default images over a slow line; after that `up` goes on and says what is missing."""
LOOK_S = 0.1
PENDING = ("unknown", "pulling")
NO_SANDBOX = {"engine": "unserved"}
"""What a worker says that serves no sandbox queue (SKILLS_WORKER_QUEUES): nothing, on purpose."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the workers know of their Docker engine."""

    engine: str
    detail: str
    images: dict[str, str]

    @property
    def settled(self) -> bool:
        """Tell whether nothing is under way: no engine, or each image present or unreachable."""
        if self.engine != "ready":
            return self.engine in {"unavailable", "unserved"}
        return all(not self.state(image).startswith(PENDING) for image in DEFAULT_IMAGES)

    @property
    def served(self) -> bool:
        """Tell whether any worker takes what needs a container; else it waits for one."""
        return self.engine != "unserved"

    @property
    def runs(self) -> bool:
        """Tell whether sandbox skills can run, with every default image."""
        return self.engine == "ready" and all(
            self.state(image) == "present" for image in DEFAULT_IMAGES
        )

    def state(self, image: str) -> str:
        """Return what is known of an image."""
        return self.images.get(image, "unknown")

    def __str__(self) -> str:
        """Say in one line how the sandbox stands."""
        if not self.served:
            return "No worker serves the queue sandbox (SKILLS_WORKER_QUEUES)"
        if self.engine != "ready":
            return (
                f"Docker engine {self.engine}: {self.detail}"
                if self.detail
                else "Docker engine: looking"
            )
        return "Sandbox images: " + ", ".join(
            f"{image} {self.state(image)}" for image in DEFAULT_IMAGES
        )


def wait(fleet: Fleet, url: str, database_url: str) -> Sandbox:
    """Wait for the dispatcher, for each worker, and for the sandbox images; return how those stand.

    Raises ChildFailed, with the end of its log, for a room that ends or stays unready.
    """
    return asyncio.run(all_ready(fleet, url, database_url))


async def all_ready(fleet: Fleet, url: str, database_url: str) -> Sandbox:
    """Do what ``wait`` does, step by step."""
    end = time.monotonic() + START_S
    connection = await asyncpg.connect(database_url)
    try:
        await dispatcher_ready(fleet, url, end)
        await workers_ready(fleet, connection, end)
        return await images_ready(fleet, connection)
    finally:
        await connection.close()


async def dispatcher_ready(fleet: Fleet, url: str, end: float) -> None:
    """Wait until ``/readyz`` answers 200."""
    last = "no answer"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5) as client:
        while True:
            fleet.check()
            try:
                answer = await client.get("/readyz")
            except httpx.TransportError as error:
                last = f"no answer ({type(error).__name__})"
            else:
                if answer.status_code == httpx.codes.OK:
                    return
                last = f"{answer.status_code} {answer.text[:500]}"
            too_late(end, fleet.dispatchers[0], f"/readyz says: {last}")
            await asyncio.sleep(LOOK_S)


async def workers_ready(fleet: Fleet, connection: Any, end: float) -> None:
    """Wait until each worker has written its presence."""
    while True:
        fleet.check()
        present = {row["pid"] for row in await rows(fleet, connection)}
        absent = [child for child in fleet.workers if pid(child) not in present]
        if not absent:
            return
        too_late(end, absent[0], "it has not written its presence into the table workers")
        await asyncio.sleep(LOOK_S)


async def images_ready(fleet: Fleet, connection: Any) -> Sandbox:
    """Wait until the images are present or known to be out of reach; show what goes on."""
    end = time.monotonic() + IMAGES_S
    with progress(fleet.console) as show:
        while True:
            fleet.check()
            sandbox = worst([reading(row["sandbox"]) for row in await rows(fleet, connection)])
            if sandbox.settled or time.monotonic() > end:
                return sandbox
            show(str(sandbox))
            await asyncio.sleep(LOOK_S)


async def rows(fleet: Fleet, connection: Any) -> list[Any]:
    """Return the presence of this fleet's workers."""
    found: list[Any] = await connection.fetch(
        "SELECT pid, sandbox::text AS sandbox FROM workers"
        " WHERE pid = ANY($1::int[]) AND stopped_at IS NULL"
        " AND heartbeat_at > clock_timestamp() - interval '30 seconds'",
        [pid(child) for child in fleet.workers],
    )
    return found


def reading(text: str | None) -> Sandbox:
    """Return what one worker reports; a worker that serves no sandbox queue reports nothing."""
    found: dict[str, Any] = from_json(text) if text else NO_SANDBOX
    return Sandbox(
        str(found.get("engine", "unknown")),
        str(found.get("detail") or ""),
        {str(name): str(state) for name, state in (found.get("images") or {}).items()},
    )


def worst(reports: list[Sandbox]) -> Sandbox:
    """Return the report to wait for: one that is not settled, else one that runs, else any."""
    for report in reports:
        if not report.settled:
            return report
    running = [report for report in reports if report.runs]
    return (running or reports or [Sandbox("unknown", "", {})])[0]


def pid(child: Child) -> int:
    """Return a started child's process id."""
    return child.process.pid if child.process else 0


def too_late(end: float, child: Child, what: str) -> None:
    """Raise ChildFailed once the deadline has passed."""
    if time.monotonic() > end:
        raise ChildFailed(
            f"{child.name} was not ready within {START_S:.0f} s: {what}\n{child.tail()}"
        )


@contextmanager
def progress(console: Console) -> Iterator[Any]:
    """Give a function that shows a changing line: in place on a terminal, else each stage."""
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
        return
    shown: list[str] = []

    def show(line: str) -> None:
        # percentages change all the time; a log wants to know the stages only
        stage = "".join(letter for letter in line if not letter.isdigit())
        if stage not in shown:
            shown.append(stage)
            console.print(line)

    yield show
