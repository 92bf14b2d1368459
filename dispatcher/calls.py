"""What the clients send and how they read what comes back; no input and output happens here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from dispatcher.answers import ExecutionPage
from dispatcher.waits import CANCEL_WAIT_S, WAIT_MAX_S
from shared.errors import ErrorCode, InvalidInput, SkillfleetError, Unavailable, UnknownHandler
from shared.models import Execution, Skill, SkillInstall

API = "/api/skills"
EXECUTIONS = f"{API}/executions"
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``wait_s`` is how long the answer may be held back on purpose."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0

    def arguments(self, timeout_s: float) -> dict[str, Any]:
        """Return what httpx's ``request`` takes; its read timeout follows the wait."""
        return {
            "method": self.method,
            "url": self.path,
            "params": {
                name: text(value) for name, value in self.query.items() if value is not None
            },
            "json": self.body,
            "headers": dict(self.headers),
            "timeout": httpx.Timeout(timeout_s, read=timeout_s + self.wait_s),
        }


def submit(
    skill_name: str | None,
    input: Mapping[str, Any] | None,
    idempotency_key: str | None,
    wait_s: float | None,
    fields: Mapping[str, Any],
) -> Call:
    """Return the call for ``POST /executions``."""
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    headers |= prefer(wait_s)
    body = wire({"skill_name": skill_name, "input": dict(input or {}), **fields})
    held = WAIT_MAX_S if wait_s is None else min(max(wait_s, 0.0), WAIT_MAX_S)
    return Call(method="POST", path=EXECUTIONS, body=body, headers=headers, wait_s=held)


def submit_many(requests: Sequence[Mapping[str, Any]], wait_s: float) -> Call:
    """Return the call for ``POST /executions/batch``."""
    return Call(
        method="POST",
        path=f"{EXECUTIONS}/batch",
        body={"executions": [wire(request) for request in requests]},
        headers=prefer(wait_s),
        wait_s=min(max(wait_s, 0.0), WAIT_MAX_S),
    )


def cancel(execution_id: UUID | str, wait_s: float | None) -> Call:
    """Return the call that cancels an execution."""
    held = CANCEL_WAIT_S if wait_s is None else min(max(wait_s, 0.0), WAIT_MAX_S)
    path = f"{EXECUTIONS}/{segment(execution_id)}/cancel"
    return Call(method="POST", path=path, headers=prefer(wait_s), wait_s=held)


def cancel_all(filters: Mapping[str, Any]) -> Call:
    """Return the call that cancels all that fit."""
    return Call(method="POST", path=f"{EXECUTIONS}/cancel", body=wire(filters), wait_s=WAIT_MAX_S)


def prefer(wait_s: float | None) -> dict[str, str]:
    """Return the header that says how long to wait; none leaves it to the dispatcher."""
    if wait_s is None:
        return {}
    return {"Prefer": f"wait={math.ceil(wait_s)}" if wait_s > 0 else "respond-async"}


def get(execution_id: UUID | str, wait_s: float = 0.0) -> Call:
    """Return the call for one execution."""
    held = min(max(wait_s, 0.0), WAIT_MAX_S)
    query = {"wait": held} if held else {}
    return Call(
        method="GET", path=f"{EXECUTIONS}/{segment(execution_id)}", query=query, wait_s=held
    )


def page(filters: Mapping[str, Any]) -> Call:
    """Return the call for a page of executions."""
    query = {to_camel(name): value for name, value in filters.items()}
    return Call(method="GET", path=EXECUTIONS, query=query)


def versions(name: str, api_key_id: str | None) -> Call:
    """Return the call for a skill's versions."""
    path = f"{API}/{segment(name)}/versions"
    return Call(method="GET", path=path, query={"apiKeyId": api_key_id})


def unregister(name: str, version: str | None, api_key_id: str | None) -> Call:
    """Return the call that removes a skill by name."""
    path = f"{API}/{segment(name)}/versions"
    return Call(method="DELETE", path=path, query={"apiKeyId": api_key_id, "version": version})


def install(body: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> Call:
    """Return the call that installs a skill."""
    names = {name: found.alias or name for name, found in SkillInstall.model_fields.items()}
    sent = {names.get(name, name): value for name, value in fields.items()}
    return Call(method="POST", path=f"{API}/install", body={**(body or {}), **wire(sent)})


def execution(answer: Mapping[str, Any]) -> Execution:
    """Read an execution."""
    return known(Execution, answer["execution"])


def results(answer: Mapping[str, Any]) -> list[Execution | SkillfleetError]:
    """Read the answers to many submits."""
    return [
        known(Execution, found["execution"])
        if "execution" in found
        else error(int(found["status"]), found)
        for found in answer["results"]
    ]


def executions(answer: Mapping[str, Any]) -> ExecutionPage:
    """Read a page of executions."""
    rows = [known(Execution, row) for row in answer["data"]]
    return known(ExecutionPage, {**answer, "data": rows})


def skill(answer: Mapping[str, Any]) -> Skill:
    """Read a skill."""
    return known(Skill, answer["skill"])


def skills(answer: Mapping[str, Any]) -> list[Skill]:
    """Read skills."""
    return [known(Skill, row) for row in answer["data"]]


def known(model: type[M], value: Mapping[str, Any]) -> M:
    """Read a model; fields of a newer server are left aside."""
    names = {found.alias or name for name, found in model.model_fields.items()}
    return model.model_validate({name: item for name, item in value.items() if name in names})


def read(response: httpx.Response) -> dict[str, Any]:
    """Return the answer's JSON; raise the error that it stands for."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.is_success and isinstance(answer, dict):
        return answer
    raise error(response.status_code, answer if isinstance(answer, dict) else {})


def error(status: int, problem: Mapping[str, Any]) -> SkillfleetError:
    """Return the error of our tree that a problem document came from."""
    message = str(problem.get("error") or f"The dispatcher answered {status} without saying why")
    code = problem.get("code")
    kinds = list(tree(SkillfleetError))
    fitting = [kind for kind in kinds if kind.code == code and kind.status == status]
    fitting += [kind for kind in kinds if kind.status == status]
    # Not by its own constructor: that would make up a message, and the server has sent one.
    kind = (fitting or [SkillfleetError])[0]
    made = kind.__new__(kind)
    known_code = ErrorCode(code) if code in set(ErrorCode) else None
    SkillfleetError.__init__(made, message, code=known_code)
    if isinstance(made, InvalidInput):
        made.violations = tuple(problem.get("violations") or ())
    if isinstance(made, UnknownHandler):
        made.known = tuple(problem.get("knownHandlers") or ())
    return made


def unreachable(url: object, cause: httpx.HTTPError) -> Unavailable:
    """Return the error for a dispatcher that does not answer."""
    return Unavailable(
        f"No answer from the dispatcher at {url} ({type(cause).__name__}). Is it running there?"
    )


def tree(kind: type[SkillfleetError]) -> list[type[SkillfleetError]]:
    """Return an error class and all below it, those above first."""
    return [kind, *(found for below in kind.__subclasses__() for found in tree(below))]


def wire(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as the wire has them, without those left open."""
    sent = {to_camel(name): value for name, value in fields.items() if value is not None}
    answer: dict[str, Any] = to_jsonable_python(sent)
    return answer


def text(value: Any) -> str:
    """Write a value into a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def segment(value: object) -> str:
    """Write a value into a path, as one segment."""
    return quote(str(value), safe="")
