"""Schemathesis over the OpenAPI document: no 5xx whatever is sent, and answers as documented."""

import asyncio
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.services import MANAGEMENT_TOKEN

EXAMPLES = 60
BUDGET_S = 75.0
"""What is not tried by then is left; at least MUST operations have been tried in both modes."""
MUST = 10

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HEADERS = {"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}


@pytest.mark.timeout(240)
async def test_no_request_makes_a_server_error(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    room = await spawn_dispatcher()
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    async with httpx.AsyncClient(base_url=room.url, headers=HEADERS, trust_env=False) as api:
        for name in ("echo", "sleep"):
            body = {"name": name, "handlerCode": f"{name}-handler", "timeoutMs": 500}
            assert (await api.post("/api/skills/install", json=body)).status_code == 201
        document = (await api.get("/openapi.json")).json()
        made = (await api.post("/api/skills/executions", json={"skillName": "echo"})).json()
    known = {
        "skill_id": made["execution"]["skillId"],
        "execution_id": made["execution"]["id"],
        "name": "echo",
        "key_id": "nobody",
        "kind": "owner",
        "owner": "nobody",
        "erasure_id": str(uuid4()),
    }
    tried = await asyncio.to_thread(attack, document, room.url, known)
    assert tried >= MUST
    assert "Traceback" not in room.logged()
    assert room.process.poll() is None


def attack(document: dict[str, Any], url: str, known: dict[str, str]) -> int:
    """Try every operation with data that fits and data that does not; return how many were.

    Data that fits is about things that exist: ``known`` are their names in paths.
    """
    schema = schemathesis.openapi.from_dict(document)
    end = time.monotonic() + BUDGET_S
    tried = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        for mode in GenerationMode:
            if time.monotonic() < end:
                fixed = {
                    found.name: known[found.name]
                    for found in operation.path_parameters
                    if mode is GenerationMode.POSITIVE
                }
                attempt(operation, mode, url, fixed)
        tried += time.monotonic() < end
    return tried


def attempt(operation: Any, mode: GenerationMode, url: str, fixed: dict[str, str]) -> None:
    """Send one operation's generated requests and check the answers."""

    @given(case=operation.as_strategy(generation_mode=mode, path_parameters=fixed or None))
    @hypothesis_settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        # Nobody is to wait here; and half of what bodies name shall exist.
        if operation.label.endswith("/executions"):
            case.headers = {**(case.headers or {}), "Prefer": "wait=1"}
        if isinstance(case.body, dict) and len(case.body) % 2:
            for name, value in (("skillName", "echo"), ("handlerCode", "echo-handler")):
                if name in case.body:
                    case.body[name] = value
        response = case.call(base_url=url, headers=HEADERS, timeout=30)
        case.validate_response(response, checks=CHECKS, headers=HEADERS)

    # what takes nothing can't be sent anything wrong
    with suppress(Unsatisfiable):
        send()
