"""The async client of a dispatcher, over HTTP.

::

    async with Client("http://localhost:20128", api_key) as client:
        execution = await client.submit("file_read", {"path": "a.txt"})

Errors are those of ``shared.errors``, by the code the dispatcher sent; one that does not answer is
``Unavailable``.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx

from dispatcher import calls
from dispatcher.answers import ExecutionPage
from dispatcher.waits import WAIT_MAX_S
from shared.errors import SkillfleetError
from shared.models import Execution, Skill

TIMEOUT_S = 10.0


class Client:
    """A connection pool to one dispatcher, with one credential.

    ``timeout_s`` is for connecting, writing, and reading beyond the wait that was asked for.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            transport=transport,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        """Use it; leaving closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        skill_name: str | None = None,
        input: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        **fields: Any,
    ) -> Execution:
        """Execute a skill and return the execution, finished if it ended within the wait.

        ``wait_s`` None waits for its time limit and five seconds, 0 not at all; 120 s at most.
        ``fields`` are those of SubmitRequest: ``skill_id`` instead of the name, ``api_key_id``,
        ``session_id``, ``timeout_ms``, ``priority``, …
        """
        return calls.execution(
            await self._do(calls.submit(skill_name, input, idempotency_key, wait_s, fields))
        )

    async def submit_many(
        self, requests: Sequence[Mapping[str, Any]], *, wait_s: float = 0.0
    ) -> "list[Execution | SkillfleetError]":
        """Execute up to 1,000 skills; return each one's execution or error, in order.

        Each request holds what ``submit`` takes: ``skill_name``, ``input``, ``idempotency_key``, …
        Returns once all have ended or ``wait_s`` is over.
        """
        return calls.results(await self._do(calls.submit_many(requests, wait_s)))

    async def cancel(self, execution_id: UUID | str, *, wait_s: float | None = None) -> Execution:
        """Cancel an execution; return it as it ended, or still running after the wait.

        ``wait_s`` None gives a running one five seconds. Raises AlreadyFinished when it ended
        otherwise.
        """
        return calls.execution(await self._do(calls.cancel(execution_id, wait_s)))

    async def cancel_all(self, **filters: Any) -> dict[str, int]:
        """Cancel all that fit; return how many ``ended`` at once, how many are ``stopping``.

        ``filters``, one at least: ``api_key_id``, ``skill_id``, ``skill_name``, ``status``,
        ``session_id``, ``since``, ``until``.
        """
        return dict(await self._do(calls.cancel_all(filters)))

    async def wait(self, execution_id: UUID | str, seconds: float) -> Execution:
        """Return the execution as soon as it has ended, or as it stands after ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            found = calls.execution(await self._do(calls.get(execution_id, left)))
            if found.finished or left <= WAIT_MAX_S:
                return found

    async def get(self, execution_id: UUID | str) -> Execution:
        """Return the execution as it stands; raise NotFound when there is none for this caller."""
        return calls.execution(await self._do(calls.get(execution_id)))

    async def list(self, **filters: Any) -> ExecutionPage:
        """Return a page of executions, newest first.

        ``filters``: ``api_key_id``, ``skill_id``, ``skill_name``, ``status``, ``session_id``,
        ``since``, ``until``, ``limit``, ``page``, ``cursor`` (``next_cursor`` of the page before).
        """
        return calls.executions(await self._do(calls.page(filters)))

    async def count(self, **filters: Any) -> int:
        """Count executions; ``filters`` as for ``list``."""
        found = await self._do(calls.page({**filters, "limit": 1, "count": True}))
        return int(found["total"])

    async def versions(self, name: str, api_key_id: str | None = None) -> Sequence[Skill]:
        """Return a skill's versions that an owner sees, highest first; needs the scope manage."""
        return calls.skills(await self._do(calls.versions(name, api_key_id)))

    async def unregister(
        self, name: str, version: str | None = None, api_key_id: str | None = None
    ) -> int:
        """Remove an owner's skill, one version or all; return how many went. Needs manage."""
        return int((await self._do(calls.unregister(name, version, api_key_id)))["removed"])

    async def install(self, body: Mapping[str, Any] | None = None, **fields: Any) -> Skill:
        """Install a skill, of the wire's ``body`` or SkillInstall's ``fields``. Needs manage."""
        return calls.skill(await self._do(calls.install(body, fields)))

    async def _do(self, call: calls.Call) -> dict[str, Any]:
        try:
            response = await self._http.request(**call.arguments(self._timeout_s))
        except httpx.HTTPError as error:
            raise calls.unreachable(self._http.base_url, error) from error
        return calls.read(response)
