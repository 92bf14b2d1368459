"""The container engine's API as this package needs it: thin, bounded in time, one kind of error.

All use of aiodocker is here, and all use of its private members (``_query_json``, ``_init``,
``_resp``): the public API of 0.27 opens an attach only at its first read, which loses the output
of short programs, and has no call with filters. pyproject.toml pins the version.
"""

# ruff: noqa: SLF001 - see above

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import aiodocker
import aiohttp
from aiodocker.stream import Stream

from shared.errors import EngineError

CALL_S = 30.0
"""Time limit of one engine call; callers with a deadline are cut off sooner."""

PROBE_S = 3.0
"""Time limit of the call that looks whether an engine is there."""

UNREACHABLE = 900
"""aiodocker's status for "could not connect"."""

NOT_FOUND, CONFLICT = 404, 409
CHUNK = 65_536

State = Literal["unknown", "ready", "unavailable"]


class Engine:
    """One connection pool to the engine; it finds the engine again when that comes back."""

    def __init__(self) -> None:
        self.state: State = "unknown"
        self.detail = ""
        self.cpus: int | None = None
        self._where: str | None = None
        self._docker: aiodocker.Docker | None = None
        self._connector: aiohttp.BaseConnector | None = None

    async def connect(self) -> None:
        """Look whether a usable engine is there; raise EngineError when not. Sets ``state``."""
        where = endpoint()
        try:
            if where != self._where:
                await self._open(where)
            async with self._call(PROBE_S) as docker:
                info = await docker.system.info()
            require_seccomp(info)
        except EngineError as error:
            self.state, self.detail = "unavailable", str(error)
            raise
        self.cpus = info.get("NCPU") or None
        self.state, self.detail = "ready", f"engine {info.get('ServerVersion', '')} at {where}"

    async def close(self) -> None:
        """Close every connection."""
        if self._docker is not None and self._connector is not None:
            await self._docker.close()
            await self._connector.close()  # a connector of ours is not closed with the client
        self._docker = self._connector = self._where = None

    # containers; ``name`` is chosen by the caller before create, so that a lost answer hides none

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create a container. The engine goes on with it even when the caller stops waiting."""
        async with self._call() as docker:
            await docker.containers.create(body, name=name)

    async def attach(self, name: str) -> "Attached":
        """Open the three streams; must precede start, or early output is lost."""
        async with self._call() as docker:
            stream = docker.containers.container(name).attach(stdin=True, stdout=True, stderr=True)
            attached = Attached(stream)
            try:
                await stream._init()
            except BaseException:
                await attached.close()
                raise
        return attached

    async def start(self, name: str) -> None:
        """Start a created container."""
        async with self._call() as docker:
            await docker.containers.container(name).start()

    async def kill(self, name: str, signal: str) -> None:
        """Send a signal; a container that is gone or ended already is fine."""
        try:
            async with self._call() as docker:
                await docker.containers.container(name).kill(signal=signal)
        except EngineError as error:
            tolerate(error, NOT_FOUND, CONFLICT)

    async def unthrottle(self, name: str) -> None:
        """Give a container that is about to be killed every CPU: dying at 0.1 CPU takes seconds.

        Only haste: it raises nothing.
        """
        body = {"NanoCpus": (self.cpus or 1) * 1_000_000_000}
        with suppress(EngineError):
            async with self._call(PROBE_S) as docker:
                await docker._query_json(f"containers/{name}/update", method="POST", data=body)

    async def wait(self, name: str) -> None:
        """Wait until the container does not run (``not-running`` answers at once when so)."""
        async with self._call() as docker:
            await docker.containers.container(name).wait(condition="not-running")

    async def inspect(self, name: str) -> dict[str, Any] | None:
        """Return the engine's account of a container; None when there is none."""
        try:
            async with self._call() as docker:
                return await docker.containers.container(name).show()
        except EngineError as error:
            tolerate(error, NOT_FOUND)
            return None

    async def remove(self, name: str) -> bool:
        """Remove a container, running or not; False when there was none."""
        try:
            async with self._call() as docker:
                await docker.containers.container(name).delete(force=True, v=True)
        except EngineError as error:
            tolerate(error, NOT_FOUND, CONFLICT)
            return False
        return True

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """List containers in every state that carry all of these labels."""
        wanted = {"label": [f"{name}={value}" for name, value in labels.items()]}
        async with self._call() as docker:
            found: list[dict[str, Any]] = await docker._query_json(
                "containers/json", params={"all": True, "filters": wanted}
            )
        return found

    # images and networks

    async def has_image(self, reference: str) -> bool:
        """Tell whether an image is there."""
        try:
            async with self._call() as docker:
                await docker.images.inspect(reference)
        except EngineError as error:
            tolerate(error, NOT_FOUND)
            return False
        return True

    async def pull(self, reference: str, limit_s: float) -> AsyncIterator[dict[str, Any]]:
        """Pull an image and yield the engine's progress messages."""
        async with self._call(limit_s) as docker:
            async for message in docker.images.pull(reference, stream=True):
                yield message

    async def network(self, name: str) -> dict[str, Any] | None:
        """Return the engine's account of a network; None when there is none."""
        try:
            async with self._call() as docker:
                found: dict[str, Any] = await docker._query_json(f"networks/{name}")
        except EngineError as error:
            tolerate(error, NOT_FOUND)
            return None
        return found

    async def create_network(self, body: dict[str, Any]) -> None:
        """Create a network; one of that name being there already is fine."""
        try:
            async with self._call() as docker:
                await docker.networks.create(body)
        except EngineError as error:
            tolerate(error, CONFLICT)

    # inside

    async def _open(self, where: str) -> None:
        await self.close()
        url, self._connector = connector(where)
        self._docker = aiodocker.Docker(
            url=url,
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(sock_connect=PROBE_S),
        )
        self._where = where

    @asynccontextmanager
    async def _call(self, limit_s: float = CALL_S) -> AsyncIterator[aiodocker.Docker]:
        """Bound one use of the client in time and turn what it raises into EngineError."""
        if self._docker is None:
            raise EngineError("not connected", answer=None)
        try:
            async with asyncio.timeout(limit_s):
                yield self._docker
        except aiodocker.DockerError as error:
            if error.status != UNREACHABLE:
                raise EngineError(error.message, answer=error.status) from error
            self._lose(error)
            raise EngineError(reason(error), answer=None) from error
        except TimeoutError as error:
            raise EngineError(f"no answer within {limit_s:g} s", answer=None) from error
        except (aiohttp.ClientError, OSError) as error:
            self._lose(error)
            raise EngineError(reason(error), answer=None) from error

    def _lose(self, error: Exception) -> None:
        self.state, self.detail = "unavailable", reason(error)


class Attached:
    """A container's three streams. Reading must never stop while the container lives.

    With an attached client that does not read, the engine's kill and remove calls do not return
    (moby#41827).
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next chunk with its stream's number (1 or 2), None at the end."""
        try:
            message = await self._stream.read_out()
        except (aiodocker.DockerError, aiohttp.ClientError, OSError) as error:
            raise EngineError(reason(error), answer=None) from error
        return None if message is None else (message.stream, message.data)

    async def write(self, data: bytes) -> None:
        """Write to the container's stdin; a container that ended before reading is no error."""
        try:
            for start in range(0, len(data), CHUNK):
                await self._stream.write_in(data[start : start + CHUNK])
        except (aiohttp.ClientError, OSError, RuntimeError, AssertionError):
            return  # the reader sees the same end and judges it

    async def close(self) -> None:
        """Close the streams; what the container still writes is dropped by the engine."""
        response = self._stream._resp
        if response is not None and response.connection is None:
            self._stream._closed = True  # the peer was faster: Stream.close would assert
            response.close()
        else:
            await self._stream.close()


def endpoint() -> str:
    """Return where the engine should be: DOCKER_HOST, else the first of the usual sockets."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    usual = [Path("/var/run/docker.sock"), Path.home() / ".docker/run/docker.sock"]
    if run := os.environ.get("XDG_RUNTIME_DIR"):
        usual.append(Path(run) / "docker.sock")
    found = next((path for path in usual if path.is_socket()), usual[0])
    return f"unix://{found}"


def connector(where: str) -> tuple[str, aiohttp.BaseConnector]:
    """Return the base URL and an unlimited connector; each running container holds a connection.

    aiodocker's own connector stops at 100. Raises EngineError for a scheme that is not known.
    """
    scheme, _, rest = where.partition("://")
    if scheme == "unix":
        return "http://docker", aiohttp.UnixConnector(rest, limit=0)
    if scheme not in ("tcp", "http", "https"):
        raise EngineError(
            f"DOCKER_HOST {where!r} is not understood: use unix://PATH or tcp://HOST:PORT",
            answer=None,
        )
    context = tls()
    if context is None and scheme != "https":
        return f"http://{rest}", aiohttp.TCPConnector(limit=0)
    return f"https://{rest}", aiohttp.TCPConnector(limit=0, ssl=context or True)


def tls() -> ssl.SSLContext | None:
    """Read DOCKER_TLS_VERIFY and DOCKER_CERT_PATH as the docker command does."""
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return None
    folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    except (OSError, ssl.SSLError) as error:
        raise EngineError(
            f"DOCKER_TLS_VERIFY is set but DOCKER_CERT_PATH has no usable certificates: {error}",
            answer=None,
        ) from error
    return context


def require_seccomp(info: Mapping[str, Any]) -> None:
    """Refuse an engine that filters no system calls: our containers rely on its default."""
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    seccomp = [option for option in options if "name=seccomp" in option]
    if not seccomp or any("unconfined" in option for option in seccomp):
        raise EngineError(
            "the container engine runs without a seccomp profile; start it with the default one",
            answer=None,
        )


def tolerate(error: EngineError, *answers: int) -> None:
    """Raise the error again unless the engine's answer is one of these."""
    if error.answer not in answers:
        raise error


def reason(error: Exception) -> str:
    """Shorten a connection error to its cause, without paths of the host."""
    chain: list[BaseException] = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    told = [cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror]
    if told:
        return told[0]
    inner = chain[1] if len(chain) > 1 else error
    return str(inner) or type(inner).__name__
