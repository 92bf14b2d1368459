"""A steady load over REST and by the library's wire form, and the ledger of what was accepted.

A keyed request is sent again, to either dispatcher, until it is answered: then it is accepted, and
every answer names the same execution. One without a key is sent once: where its answer was lost
nobody knows whether there is a row.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from tests.faults.cluster import Cluster
from tests.services import MANAGEMENT_TOKEN

PATH = "/api/skills/executions"
KINDS = {
    "effect": 40, "effect-once": 30, "effect-flaky": 6, "effect-fails": 4, "effect-late": 2,
    "later": 6, "expiring": 4, "cancelled": 8,
}  # fmt: skip
"""What is submitted, and how often of a hundred; the last three are `effect` with a twist."""

BATCH = 10
LATE_MS = 300
GIVE_UP_S = 120.0
"""How long a keyed request is tried: longer than any fault lasts."""

SURE = (200, 202)
AGAIN = (429, 500, 502, 503, 504)


@dataclass(slots=True)
class Ledger:
    """What was accepted, by execution, as which kind; keys with two executions; and the unsure."""

    accepted: dict[UUID, str] = field(default_factory=dict)
    keys: dict[str, set[UUID]] = field(default_factory=dict)
    unsure: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    retried: int = 0


class Load:
    """Submits at a steady rate until it is told to end."""

    def __init__(self, cluster: Cluster, chance: random.Random, log: Path, rate: float) -> None:
        self.ledger = Ledger()
        self._cluster = cluster
        self._chance = chance
        self._log = log
        self._rate = rate
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, over: asyncio.Event) -> None:
        """Submit until ``over``, then wait for the answers that are still to come."""
        loop = asyncio.get_running_loop()
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {MANAGEMENT_TOKEN}"},
            trust_env=False, timeout=10, limits=limits,
        ) as http:  # fmt: skip
            began, sent = loop.time(), 0
            while not over.is_set():
                bodies = [self._body() for _ in range(self._chance.choice((1, 1, BATCH)))]
                self._do(self._submit(http, bodies))
                sent += len(bodies)
                await asyncio.sleep(max(0.0, began + sent / self._rate - loop.time()))
            while self._tasks:
                await asyncio.wait(self._tasks)

    def _body(self) -> tuple[str, dict[str, Any]]:
        """Return a kind and the request for one of it."""
        chance = self._chance
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        self._number += 1
        body: dict[str, Any] = {
            "skillName": kind if kind.startswith("effect") else "effect",
            "input": {"log": str(self._log), "seconds": chance.choice((0, 0, 0.01, 0.2))},
            "apiKeyId": f"owner-{self._number % 7}",
            "priority": chance.choice(("high", "normal", "low")),
        }
        if kind == "effect-late":
            body["timeoutMs"] = LATE_MS
        if kind == "later":
            soon = datetime.now(UTC) + timedelta(seconds=chance.uniform(0.1, 3))
            body["notBefore"] = soon.isoformat()
        if kind == "expiring":
            soon = datetime.now(UTC) + timedelta(seconds=chance.uniform(1, 3))
            body["expiresAt"] = soon.isoformat()
        if chance.random() < 0.7:
            body["idempotencyKey"] = f"key-{self._number}"
        return kind, body

    async def _submit(
        self, http: httpx.AsyncClient, bodies: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Send some requests, those with a key until they are answered."""
        loop = asyncio.get_running_loop()
        left, began = bodies, loop.time()
        while left and loop.time() - began < GIVE_UP_S:
            answers = await self._ask(http, [body for _, body in left])
            again = []
            for (kind, body), answer in zip(left, answers, strict=True):
                status, execution_id = answer
                key = body.get("idempotencyKey")
                if execution_id is not None:
                    self.ledger.accepted[execution_id] = kind
                    if key is not None:
                        self.ledger.keys.setdefault(key, set()).add(execution_id)
                    if kind == "cancelled":
                        self._do(self._cancel(http, execution_id))
                elif status == 422 and kind == "expiring":
                    self.ledger.refused["expired before it came"] += 1
                elif key is not None and (status in AGAIN or status == 0):
                    again.append((kind, body))
                elif status == 0 or status in AGAIN:
                    self.ledger.unsure += 1
                else:
                    self.ledger.refused[f"{kind}: {status}"] += 1
            self.ledger.retried += len(again)
            left = again
            if left:
                await asyncio.sleep(self._chance.uniform(0.05, 0.5))
        for _, body in left:
            self.ledger.refused[f"never answered: {body['idempotencyKey']}"] += 1

    async def _ask(
        self, http: httpx.AsyncClient, bodies: list[dict[str, Any]]
    ) -> list[tuple[int, UUID | None]]:
        """Ask either dispatcher; return status and execution for each, 0 for no answer."""
        base = self._chance.choice(self._cluster.dispatchers).url
        try:
            if len(bodies) == 1:
                (body,) = bodies
                key = body.get("idempotencyKey")
                sent = {name: value for name, value in body.items() if name != "idempotencyKey"}
                headers = {"Prefer": "respond-async", **({"Idempotency-Key": key} if key else {})}
                response = await http.post(f"{base}{PATH}", json=sent, headers=headers)
                return [answer(response.status_code, response.json())]
            response = await http.post(f"{base}{PATH}/batch", json={"executions": bodies})
            if response.status_code != httpx.codes.OK:
                return [(response.status_code, None)] * len(bodies)
            results = response.json()["results"]
            return [answer(result["status"], result) for result in results]
        except (httpx.HTTPError, ValueError):
            return [(0, None)] * len(bodies)

    async def _cancel(self, http: httpx.AsyncClient, execution_id: UUID) -> None:
        """Ask for a cancellation once; whether it comes in time is a matter of luck."""
        await asyncio.sleep(self._chance.uniform(0, 0.3))
        base = self._chance.choice(self._cluster.dispatchers).url
        try:
            await http.post(
                f"{base}{PATH}/{execution_id}/cancel", headers={"Prefer": "respond-async"}
            )
        except httpx.HTTPError:
            return

    def _do(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def answer(status: int, body: dict[str, Any]) -> tuple[int, UUID | None]:
    """Return an answer's status and, where it was accepted, the execution."""
    return status, UUID(body["execution"]["id"]) if status in SURE else None
