"""What a stranger may send before anybody looks at a credential, on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dispatcher import wire
from dispatcher.wire import MAX_HEAD_BYTES, MAX_PIPELINED, Bounded, Corked
from tests.signals import until

PORTION = 16 * 1024
FAR_TOO_MUCH = 64 * 1024 * 1024
"""Bytes that a test may send before it counts as never refused."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of bytes in the body, read to its end."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def server() -> AsyncIterator[uvicorn.Server]:
    config = uvicorn.Config(
        app, port=0, lifespan="off", log_config=None, access_log=False, http=Bounded, ws="none"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await until(started, "the server listens")
    yield server
    server.should_exit = True
    await task


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    found: int = server.servers[0].sockets[0].getsockname()[1]
    return found


async def ends(port: int, head: bytes, portions: Iterator[bytes]) -> tuple[bytes, int]:
    """Send until the server ends the connection; return its answer and how much was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer, sent = bytearray(), 0
    reading = asyncio.create_task(gather(reader, answer))
    try:
        writer.write(head)
        for portion in portions:
            if reading.done() or sent > FAR_TOO_MUCH:
                break
            writer.write(portion)
            sent += len(portion)
            await writer.drain()
            await asyncio.sleep(0)
        await asyncio.wait_for(reading, 20)
    except ConnectionError:
        await asyncio.wait_for(reading, 20)
    finally:
        writer.close()
    return bytes(answer), sent


async def gather(reader: asyncio.StreamReader, answer: bytearray) -> None:
    try:
        while data := await reader.read(65_536):
            answer.extend(data)
    except ConnectionError:
        pass


def endless(portion: bytes) -> Iterator[bytes]:
    while True:
        yield portion


@pytest.mark.parametrize(
    ("head", "portion"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"x" * PORTION),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * (PORTION // 6)),
        (b"GET / HTTP/1.1\r\n", b"x" * PORTION),
        (b"GET /", b"x" * PORTION),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 2000),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"x" * PORTION),
    ],
    ids=["value", "headers", "name", "url", "trailers", "chunk-extension"],
)
async def test_a_head_without_end_is_refused(port: int, head: bytes, portion: bytes) -> None:
    answer, sent = await ends(port, head, endless(portion))
    assert sent < FAR_TOO_MUCH
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


async def test_a_large_head_within_the_limit_is_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    value = b"x" * (MAX_HEAD_BYTES // 2)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + value + b"\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_large_body_in_small_chunks_is_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(300):
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    assert (await reader.read()).endswith(b"300000")
    writer.close()


async def test_requests_sent_ahead_are_answered_in_order_up_to_a_limit(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    one = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
    few = b"".join(one % (size, b"x" * size) for size in range(1, 9))
    writer.write(few + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    answers = (await reader.read()).split(b"HTTP/1.1 200 OK")[1:]
    assert [answer[-1:] for answer in answers] == [b"%d" % size for size in [*range(1, 9), 0]]
    writer.close()


async def test_a_pipeline_without_end_is_refused(port: int) -> None:
    many = b"GET / HTTP/1.1\r\n\r\n" * (MAX_PIPELINED * 2)
    answer, sent = await ends(port, b"", endless(many))
    assert sent < FAR_TOO_MUCH
    assert answer == b"" or b"HTTP/1.1 400 " in answer


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX: "], ids=["nothing", "half"])
async def test_a_head_that_does_not_come_ends_the_connection(
    port: int, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


async def test_a_slow_body_is_not_a_slow_head(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\n")
    for _ in range(3):
        # A connection that came later and says nothing is ended: the time for a head has passed.
        later, later_writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(later.read(), 20) == b""
        later_writer.close()
        writer.write(b"x")
    assert (await reader.read()).endswith(b"3")
    writer.close()


async def test_a_websocket_is_not_offered(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


class Recorder:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def writelines(self, data: list[bytes]) -> None:
        self.told.append(b"".join(data))

    def close(self) -> None:
        self.told.append("close")


async def test_what_is_written_in_one_turn_goes_out_together_and_before_what_follows() -> None:
    recorder = Recorder()
    corked = Corked(recorder, asyncio.get_running_loop())  # type: ignore[arg-type]
    for part in (b"head ", b"body"):
        corked.write(part)
    assert recorder.told == []
    await asyncio.sleep(0)
    assert recorder.told == [b"head body"]
    corked.write(b"last")
    corked.close()
    assert recorder.told == [b"head body", b"last", "close"]
    recorder.closing = True
    corked.write(b"too late")
    await asyncio.sleep(0)
    assert recorder.told == [b"head body", b"last", "close"]


async def test_who_has_just_connected_is_still_answered_when_the_process_goes(
    server: uvicorn.Server, port: int
) -> None:
    asking, idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]

    async def accepted() -> bool:
        return len(server.server_state.connections) == 2

    await until(accepted, "both are accepted")
    for connection in list(server.server_state.connections):
        connection.shutdown()
    asking[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        answer = await asking[0].read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
        assert await idle[0].read() == b"", "closed, a little later"
    for _, writer in (asking, idle):
        writer.close()
