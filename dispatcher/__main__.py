"""The process: ``python -m dispatcher``, everything set by SKILLS_* variables.

Exit statuses: 0 stopped, 2 wrong settings or an older schema, 4 something needed is away.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from dispatcher.app import create_app
from dispatcher.dispatcher import Dispatcher
from dispatcher.processes import FLAG, Processes
from dispatcher.wire import Bounded
from shared import logging
from shared.errors import ConfigurationError, SchemaOutdated, SkillfleetError, Unavailable
from shared.settings import Settings, load

log = structlog.get_logger("dispatcher")

HURRY_S = 5.0
"""After a stop signal, waiting callers get so long for their result before they are told 202."""
GRACE_S = 8.0
"""After that, requests still under way are cut off."""


def main() -> int:
    """Run until a signal; return the exit status."""
    try:
        settings = load()
        logging.configure(settings, "dispatcher")
        if FLAG in sys.argv:
            return child(settings)
        with listen(settings) as listener:
            if settings.http.processes > 1:
                return asyncio.run(parent(settings, listener))
            run(settings, listener)
    except (ConfigurationError, SchemaOutdated) as error:
        return complain(error, 2)
    except Unavailable as error:
        return complain(error, 4)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


async def parent(settings: Settings, listener: socket.socket) -> int:
    """Keep several children on the socket; return the exit status."""
    host, port = listener.getsockname()[:2]
    count = settings.http.processes
    log.info("dispatcher.parent", url=f"http://{host}:{port}", processes=count)
    return await Processes(listener, count).run()


def child(settings: Settings) -> int:
    """Serve a parent's socket until a signal, or until the parent is gone."""
    listener, ready = map(int, sys.argv[sys.argv.index(FLAG) + 1].split(","))
    with socket.socket(fileno=listener) as inherited:
        run(settings, inherited, ready)
    return 0


def run(settings: Settings, listener: socket.socket, ready: int | None = None) -> None:
    """Run the service on the fastest event loop there is; ``ready`` is a parent's pipe."""
    with asyncio.Runner(
        loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()
    ) as runner:
        runner.run(serve(settings, listener, ready))


async def serve(settings: Settings, listener: socket.socket, ready: int | None) -> None:
    """Connect first, so that a failure is one plain error; then take requests until a signal."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        config = uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            http=Bounded,
            ws="none",
            timeout_graceful_shutdown=int(GRACE_S),
        )
        host, port = listener.getsockname()[:2]
        log.info("dispatcher.ready", url=f"http://{host}:{port}")
        await Server(config, app.state.dispatcher, ready).serve(sockets=[listener])
    log.info("dispatcher.stopped")


class Server(uvicorn.Server):
    """Uvicorn, leaving on a signal without a fuss: nobody who waits is cut off."""

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher, ready: int | None) -> None:
        super().__init__(config)
        self._dispatcher = dispatcher
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests; a child says so to its parent, and leaves when the parent is gone."""
        await super().startup(sockets)
        if self._ready is not None:
            os.write(self._ready, b"1")
            os.close(self._ready)
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._orphaned)

    def _orphaned(self) -> None:
        if not os.read(sys.stdin.fileno(), 1):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.leave()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals; uvicorn raises them again at the end, which would skip clean-up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def leave(self) -> None:
        """Take no more, and let those who wait know in time that they must ask again."""
        log.info("dispatcher.stopping")
        self.should_exit = True
        asyncio.get_running_loop().call_later(HURRY_S, self._dispatcher.hurry)


def listen(settings: Settings) -> socket.socket:
    """Bind the address; raise Unavailable, saying what to do, when that is not possible."""
    host, port = settings.http.host, settings.http.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise Unavailable(
            f"Can't listen on {host} port {port}: {error.strerror}. "
            "Stop what uses it, or set SKILLS_HTTP_PORT or SKILLS_HTTP_HOST"
        ) from error
    return bound


def complain(error: SkillfleetError, status: int) -> int:
    """Print the one line that says why there is no dispatcher."""
    print(f"skillfleet dispatcher: {error.message}", file=sys.stderr)  # noqa: T201  # logs may not be set up yet
    return status


if __name__ == "__main__":
    sys.exit(main())
