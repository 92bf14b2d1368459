"""Several dispatchers on one socket: a parent that binds it, starts them and keeps them there.

The parent serves nothing and connects to nothing. A child takes connections from the socket that it
inherits, says by a byte in a pipe that it is ready, and leaves when its standard input ends, so
that none outlives a parent that was killed.
"""

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress

import structlog

log = structlog.get_logger("dispatcher")

FLAG = "--child"
"""The one argument that makes a process a child: the numbers of the socket's and the pipe's end."""

BACKOFF_S = 5.0
"""The longest rest between two starts of a child that keeps ending."""


class Child:
    """A dispatcher process, from its start to its end.

    ``extra`` is one that is to take another's place, ``replaced`` one whose place is taken.
    """

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        self.process = process
        self.extra = False
        self.replaced = False
        self._pipe = pipe
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pipe, self._heard)

    def leave(self) -> None:
        """Ask it to go as a stop signal does: who waits is answered first."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def _heard(self) -> None:
        said = os.read(self._pipe, 1)  # nothing at its end
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self.ready.set_result(bool(said))


class Processes:
    """Keeps ``count`` children on a socket until a stop signal."""

    def __init__(self, listener: socket.socket, count: int) -> None:
        self._listener = listener
        self._count = count
        self._children: set[Child] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._served = False
        self._failures = 0

    async def run(self) -> int:
        """Return the exit status: 0 after a stop signal, else what the first children ended with.

        SIGHUP starts the children anew, one after the other.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._do(self.renew()))
        for _ in range(self._count):
            await self._begin()
        status = await self._over
        self.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)
        return status

    def stop(self) -> None:
        """Have every child leave."""
        self._stopping.set()
        for child in self._children:
            child.leave()
        if not self._children:
            self._end(0)

    async def renew(self) -> None:
        """Start every child anew, each before the one that it replaces leaves."""
        async with self._renewing:
            for old in [*self._children]:
                if old in self._children and not await self._renewed(old):
                    return

    async def _renewed(self, old: Child) -> bool:
        """Put another in a child's place; tell whether that one came to serve."""
        old.replaced = True  # should it end meanwhile: who follows is on the way already
        fresh = await self._begin(extra=True)
        if await fresh.ready:
            fresh.extra = False
            log.info("dispatcher.renewed", pid=fresh.process.pid, instead_of=old.process.pid)
            old.leave()
            return True
        old.replaced = False
        if not self._stopping.is_set():
            log.error("dispatcher.renewal.failed", hint="The children there are go on")
            if old not in self._children:
                await self._another()
        return False

    async def _watch(self, child: Child) -> None:
        """Start another when a child ends that nobody asked to."""
        ready = await child.ready
        if ready:
            self._served, self._failures = True, 0
        status = await child.process.wait()
        self._children.discard(child)
        if self._stopping.is_set():
            if not self._children:
                self._end(0)
        elif not ready and not self._served:
            self._end(failed(child, status))
        elif not child.extra and not child.replaced:
            log.warning("dispatcher.child.lost", pid=child.process.pid, status=status)
            await self._another()

    async def _another(self) -> None:
        await self._rest()
        if not self._stopping.is_set():
            await self._begin()

    async def _rest(self) -> None:
        """Wait a little before the next start, longer when they keep failing, never in step."""
        limit = min(BACKOFF_S, 0.1 * 2.0**self._failures)
        self._failures += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(limit / 2, limit)):  # noqa: S311  # no secret
                await self._stopping.wait()

    async def _begin(self, *, extra: bool = False) -> Child:
        read, write = os.pipe()
        listener = self._listener.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dispatcher", FLAG, f"{listener},{write}"),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(listener, write),
        )
        os.close(write)
        child = Child(process, read)
        child.extra = extra
        self._children.add(child)
        if self._stopping.is_set():  # the signal came while it was started
            child.leave()
        self._do(self._watch(child))
        return child

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, status: int) -> None:
        if not self._over.done():
            self._over.set_result(status)


def failed(child: Child, status: int) -> int:
    """Return the exit status for that of a first child; one that was killed had no last word."""
    if status >= 0:
        return status or 1
    log.error("dispatcher.child.killed", pid=child.process.pid, signal=-status)
    return 128 - status
