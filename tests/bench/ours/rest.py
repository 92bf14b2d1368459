"""The product over REST: a client so cheap that it is the dispatcher that is measured.

Keep-alive connections of raw HTTP/1.1, one request under way on each; 202 is awaited, not the end.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Sequence

from tests.bench.ours.library import SKILL
from tests.bench.peers import program
from tests.services import MANAGEMENT_TOKEN

PATH = "/api/skills/executions"
BATCH = 50


class Connection(asyncio.Protocol):
    """One connection; answers come in the order of the requests."""

    def __init__(self) -> None:
        self._buffer = b""
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return the whole answer."""
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or self._waiting is None:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            answer, self._buffer = self._buffer, b""
            self._waiting.set_result(answer)

    def connection_lost(self, _: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the dispatcher hung up"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def request(path: str, body: object) -> bytes:
    """Return the bytes of a request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {MANAGEMENT_TOKEN}\r\n"
        "Content-Type: application/json\r\nPrefer: respond-async\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def body(number: int) -> dict[str, object]:
    """Return one submit."""
    return {"skillName": SKILL, "input": {"number": number, **program.PAYLOAD}}


def work(_: argparse.Namespace) -> None:
    raise SystemExit("The workers are `python -m worker`")


async def produce(arguments: argparse.Namespace) -> program.Producer:
    port = int(os.environ["BENCH_PORT"])
    free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(arguments.flight):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        made.append(connection)
        free.put_nowait(connection)

    async def ask(asked: bytes, status: bytes) -> None:
        connection = await free.get()
        answer = await connection.ask(asked)
        if not answer.startswith(b"HTTP/1.1 " + status):
            raise SystemExit(answer.decode(errors="replace"))
        free.put_nowait(connection)

    async def one(number: int) -> None:
        await ask(request(PATH, body(number)), b"202")

    async def many(numbers: Sequence[int]) -> None:
        parts = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        asked = [
            request(f"{PATH}/batch", {"executions": [body(n) for n in part]}) for part in parts
        ]
        await asyncio.gather(*(ask(one_request, b"200") for one_request in asked))

    async def close() -> None:
        for connection in made:
            connection.close()

    return program.Producer(one, many, close)


if __name__ == "__main__":
    program.main(work, produce)
