"""One dispatcher in this process, and what a worker would do for it, by the real doors."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from fastapi import FastAPI

from dispatcher.app import create_app
from dispatcher.dispatcher import Dispatcher
from shared import keys
from shared.announce import HandlerInfo, announce
from shared.events import publish_finished
from shared.executions import Ending, Executions
from shared.settings import Settings
from shared.states import Status
from tests.factories import claim_one
from tests.services import MANAGEMENT_TOKEN
from tests.signals import until

SKILLS = "/api/skills"
EXECUTIONS = "/api/skills/executions"
WORKER = "the-worker-of-this-test"
ECHO_SCHEMA = {
    "input": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """An application whose lifespan has begun, and a client with the management token."""

    app: FastAPI
    api: httpx.AsyncClient

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the application's dispatcher."""
        found: Dispatcher = self.app.state.dispatcher
        return found

    async def announce(self, name: str = "echo-handler") -> None:
        """Make a handler known, as a worker does at its start."""
        info = HandlerInfo(
            name=name,
            version="1.0.0",
            description="Returns its input.",
            queue="direct",
            timeout_ms=None,
            max_timeout_ms=None,
            timeout_input=None,
            max_retries=None,
            idempotent=True,
            retry_on_timeout=False,
        )
        await announce(self.dispatcher.pool, [(info, None)])
        await self.dispatcher.registry.changed()

    async def install(self, name: str = "echo", **fields: Any) -> dict[str, Any]:
        """Install a skill of the handler echo-handler; return it as the wire has it."""
        await self.announce()
        body = {"name": name, "handlerCode": "echo-handler", "schema": ECHO_SCHEMA, **fields}
        response = await self.api.post(f"{SKILLS}/install", json=body)
        assert response.status_code == 201, response.text
        skill: dict[str, Any] = response.json()["skill"]
        return skill

    async def key(
        self,
        *scopes: str,
        expires_at: datetime | None = None,
        allowed: Sequence[str] | None = None,
    ) -> tuple[str, dict[str, str]]:
        """Make an API key; return its id and the header that carries it."""
        key, secret = await keys.create(
            self.dispatcher.pool,
            "test",
            scopes or ("read:skills", "execute:skills"),
            expires_at=expires_at,
            allowed_skills=allowed,
        )
        await self.dispatcher.registry.changed()
        return key.id, bearer(secret)

    async def submit(self, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
        """Submit without waiting; return the execution."""
        response = await self.api.post(
            EXECUTIONS,
            json={"skillName": "echo", "input": {"text": "hi"}, **body},
            headers={"Prefer": "respond-async", **(headers or {})},
        )
        assert response.status_code == 202, response.text
        execution: dict[str, Any] = response.json()["execution"]
        return execution

    async def run(self, execution_id: UUID | str, output: Any = None) -> None:
        """Claim, finish as success and say so, as a worker does."""
        doors = Executions(self.dispatcher.pool, ["echo-handler"])
        claim = await claim_one(doors, UUID(str(execution_id)), WORKER)
        assert claim is not None
        ending = Ending(
            id=claim.id,
            attempt=claim.attempt,
            worker_id=WORKER,
            status=Status.SUCCESS,
            output=json.dumps(claim.input if output is None else output),
            duration_ms=1,
        )
        assert await doors.finish(ending)
        await publish_finished(self.dispatcher.redis, [claim.id])

    async def pending(self, deadline_s: float = 20) -> UUID:
        """Wait for an execution that is pending; return its id."""
        return await until(
            lambda: self.dispatcher.pool.fetchval(
                "SELECT id FROM skill_executions WHERE status = 'pending' ORDER BY id LIMIT 1"
            ),
            "a pending execution",
            deadline_s=deadline_s,
        )

    async def rows(self) -> int:
        """Count the executions."""
        return await self.dispatcher.count()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Fleet]:
    """Open an application as the process does."""
    app = create_app(settings)
    async with app.router.lifespan_context(app), client(app, MANAGEMENT_TOKEN) as api:
        yield Fleet(app, api)


def client(app: FastAPI, token: str | None) -> httpx.AsyncClient:
    """Return a client that speaks to the application in this process."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://dispatcher.test",
        headers=bearer(token) if token else {},
    )


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {token}"}
