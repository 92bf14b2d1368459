"""Runs programs in containers: fill, play, retire.

``Sandbox.run`` is the one path. ``_fill`` makes a container that waits for its program, ``play``
gives it one and reads what comes back, ``_retire`` removes it. Only ``play`` depends on the call.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog

from shared.errors import EngineError, ErrorCode, ExecutionFailed
from shared.settings import Settings
from worker.sandbox import sweep
from worker.sandbox.engine import NOT_FOUND, Attached, Engine
from worker.sandbox.images import Images
from worker.sandbox.network import Fence
from worker.sandbox.outcome import SandboxResult, Seen, Stop, conclude
from worker.sandbox.output import Reply
from worker.sandbox.payload import ENTRYPOINT, Payload
from worker.sandbox.play import Lease, play
from worker.sandbox.spec import APP, LABEL, Labels, SandboxConfig, create_body, fleet_of

RETIRE_S = 5.0
"""How long a run waits for the removal of its container; it goes on without the run."""

LOOK_AGAIN_S = (0.1, 0.3, 1.0)
"""When to look again for a container whose create failed: the engine may still be at it."""

CLOSE_S = 15.0
"""How long ``close`` waits for the containers of this worker to go."""

log = structlog.get_logger(__name__)


class Sandbox:
    """Everything a worker process does with containers. ``settings`` bound it."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self._settings = settings
        self._worker = worker_id
        self._fleet = fleet_of(settings.database.url)
        self._engine = Engine()
        self._images = Images(self._engine, settings)
        self._fence = Fence(
            self._engine, runtime=settings.sandbox.runtime, dns=settings.sandbox.dns
        )
        self._slots = asyncio.Semaphore(settings.sandbox.concurrency)
        self._leases: set[Lease] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self._upkeep: asyncio.Task[None] | None = None

    async def run(
        self,
        image: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        config: SandboxConfig | None = None,
        *,
        execution_id: UUID,
        deadline: float | None = None,
        stdin: bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        output_files: Sequence[str] = (),
    ) -> SandboxResult:
        """Run one program in a container of its own and return how it ended, whatever the ending.

        ``deadline`` is on the loop's clock (seconds); without it ``config.timeout`` counts from
        now. ``files`` are put below /workspace, ``output_files`` are read from there afterwards.
        Raises ExecutionFailed when the program could not be started at all.
        """
        config = self._gated(config or SandboxConfig())
        self._images.check(image)
        started = asyncio.get_running_loop().time()
        deadline = started + config.timeout / 1000 if deadline is None else deadline
        payload = Payload(
            command=command,
            env=env or {},
            stdin=stdin,
            files=files or {},
            output_files=output_files,
            output_limit=self._settings.max.output_bytes // 2,
        )
        reply = self._reply(payload)
        seen = Seen(reply=reply, stop=Stop.DEADLINE, lost=True)  # if it never gets to start
        try:
            async with asyncio.timeout_at(deadline) as limit, self._slots:
                await self._ready(image)
                async with self._lease(execution_id, deadline) as lease:
                    attached = await self._fill(lease, image, config)
                    if not limit.expired():
                        limit.reschedule(None)  # from here on ``play`` keeps the deadline
                    seen = await play(self._engine, lease, attached, payload, reply, deadline)
        except TimeoutError:
            log.warning("sandbox.late_start", execution_id=str(execution_id))
        return conclude(
            seen,
            duration_ms=round((asyncio.get_running_loop().time() - started) * 1000),
            network=config.networkEnabled,
            output_files=tuple(output_files),
        )

    # life of the sandbox itself

    async def start(self) -> None:
        """Begin to look after engine and images; never fails for want of an engine."""
        if self._upkeep is None:
            self._upkeep = asyncio.create_task(self._images.upkeep(), name="sandbox-upkeep")

    async def close(self) -> None:
        """Stop the upkeep, kill and remove every container of this worker, disconnect."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
            self._upkeep = None
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.kill_all()
                for lease in tuple(self._leases):
                    await lease.gone.wait()
                await self._remove_own()
        except (TimeoutError, EngineError) as error:
            log.warning("sandbox.close_incomplete", reason=str(error) or "no answer in time")
        await self._engine.close()

    async def kill(self, execution_id: UUID) -> bool:
        """Kill an execution's container; False when there is none. Its run ends as killed."""
        found = [lease for lease in self._leases if lease.execution == execution_id]
        for lease in found:
            lease.end(Stop.KILLED)
        return bool(found)

    async def kill_all(self) -> int:
        """Kill every container of this worker; return how many there were."""
        for lease in tuple(self._leases):
            lease.end(Stop.KILLED)
        return len(self._leases)

    def running(self) -> tuple[UUID, ...]:
        """Return the executions that have a container now."""
        return tuple(lease.execution for lease in self._leases)

    def state(self) -> dict[str, Any]:
        """Return engine and images in words, fit for JSON: it goes into the presence record.

        ``engine``: ready, unavailable or unknown; ``images`` maps each reference to ``present``,
        ``unknown``, ``pulling …`` or ``unreachable: …``.
        """
        return {
            "engine": self._engine.state,
            "detail": self._engine.detail,
            "images": dict(self._images.state),
        }

    async def sweep(self, live_workers: Collection[str]) -> int:
        """Remove what dead workers, lost creates and stuck runs left; return how many.

        Never touches a container of another worker in ``live_workers``; without an engine it
        does nothing.
        """
        removed = 0
        try:
            if self._engine.state != "ready":
                await self._engine.connect()
            found = await self._engine.containers({f"{LABEL}app": APP})
            held = {lease.name for lease in self._leases}
            for container in found:
                if sweep.doomed(
                    container,
                    fleet=self._fleet,
                    worker=self._worker,
                    live=live_workers,
                    held=held,
                    now=time.time(),
                ):
                    removed += await self._engine.remove(container["Id"])
                    log.warning("sandbox.swept", container=container["Names"])
        except EngineError as error:
            log.debug("sandbox.sweep_skipped", reason=str(error))
        return removed

    # one run's steps

    async def _ready(self, image: str) -> None:
        """Make sure of engine and image, without waiting for either."""
        try:
            if self._engine.state != "ready":
                await self._engine.connect()
            await self._images.require(image)
        except EngineError as error:
            raise unavailable(error) from error

    async def _fill(self, lease: Lease, image: str, config: SandboxConfig) -> Attached:
        """Make a container that waits for its program; raise ExecutionFailed when that fails."""
        attached = None
        try:
            network = await self._fence.network() if config.networkEnabled else None
            body = create_body(
                image=image,
                entrypoint=ENTRYPOINT,
                config=config,
                labels=lease.labels,
                runtime=self._settings.sandbox.runtime,
                engine_cpus=self._engine.cpus,
                network=network,
            )
            lease.creating = asyncio.create_task(self._engine.create(lease.name, body))
            await asyncio.shield(lease.creating)
            attached = await self._engine.attach(lease.name)
            await self._engine.start(lease.name)
            if network:
                await self._fence.close_in(lease.name, lease.labels)
        except BaseException as error:
            if attached:
                await attached.close()
            if isinstance(error, EngineError):
                gone = error.answer == NOT_FOUND and "image" in str(error).lower()
                raise self._images.lost(image) if gone else unavailable(error) from error
            raise
        return attached

    @asynccontextmanager
    async def _lease(self, execution: UUID, deadline: float) -> AsyncIterator[Lease]:
        """Register a container before it exists, and remove it whatever happens."""
        loop = asyncio.get_running_loop()
        left_ms = round((deadline - loop.time()) * 1000)
        lease = Lease(
            execution=execution,
            name=f"{APP}-{secrets.token_hex(12)}",
            labels=Labels(
                fleet=self._fleet,
                worker=self._worker,
                execution=execution,
                deadline_ms=round(time.time() * 1000) + left_ms,
            ),
            stop=loop.create_future(),
        )
        self._leases.add(lease)
        try:
            yield lease
        finally:
            task = asyncio.create_task(self._retire(lease), name=f"retire-{lease.name}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
            await asyncio.wait({task}, timeout=RETIRE_S)  # a cancelled caller doesn't cancel it

    async def _retire(self, lease: Lease) -> None:
        """Remove a container; also one whose create is still under way or got no answer."""
        try:
            if lease.creating is None:
                return
            await asyncio.wait({lease.creating})
            failure = lease.creating.exception()
            unsure = isinstance(failure, EngineError) and failure.answer is None
            if not lease.ended:
                await self._engine.unthrottle(lease.name)
            for pause_s in LOOK_AGAIN_S:
                if await self._engine.remove(lease.name) or not unsure:
                    break
                await asyncio.sleep(pause_s)
        except EngineError as error:
            log.warning("sandbox.remove_failed", name=lease.name, reason=str(error))
        finally:
            self._leases.discard(lease)  # from here on the sweep looks after what is left
            lease.gone.set()

    async def _remove_own(self) -> None:
        """Remove what this worker's labels still find."""
        if self._engine.state == "unknown":
            return  # never used
        if self._engine.state != "ready":
            await self._engine.connect()
        wanted = {f"{LABEL}fleet": self._fleet, f"{LABEL}worker": self._worker}
        for container in await self._engine.containers(wanted):
            await self._engine.remove(container["Id"])

    def _gated(self, config: SandboxConfig) -> SandboxConfig:
        """Take the network away unless the master gate is open as well."""
        allowed = config.networkEnabled and self._settings.sandbox.network_enabled
        return replace(config, networkEnabled=allowed)

    def _reply(self, payload: Payload) -> Reply:
        return Reply(
            secrets.token_hex(16),
            cap=self._settings.max.sandbox_output_chars,
            files=len(payload.output_files),
            files_bytes=payload.output_limit,
        )


def unavailable(error: EngineError) -> ExecutionFailed:
    """Say that nothing could be started, and what helps."""
    log.warning("sandbox.unavailable", reason=str(error), answer=error.answer)
    if error.answer is None:
        message = (
            f"No container engine answers the worker ({error}). Start Docker, let the worker's "
            "user use it (group docker), or set DOCKER_HOST; it is found without a restart"
        )
    else:
        message = (
            f"The container engine refused the container (status {error.answer}); "
            "the worker's log says why"
        )
    return ExecutionFailed(message, code=ErrorCode.SANDBOX_UNAVAILABLE, nothing_ran=True)
