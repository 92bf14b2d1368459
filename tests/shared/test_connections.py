"""What a steady connection does that redis-py's own does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Gone

from shared.redis import AWAY, connect
from tests.factories import make_settings


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Redis]:
    client = connect(make_settings(redis={"url": url}))
    try:
        yield client
    finally:
        await client.aclose()


async def test_a_command_is_sent_without_a_task_of_its_own(redis_url: str) -> None:
    def forbidden(*_: object, **__: object) -> Any:
        raise AssertionError("a task was made")

    async with ours(redis_url) as client:
        await client.ping()
        loop = asyncio.get_running_loop()
        loop.set_task_factory(forbidden)
        try:
            assert await client.ping()
            assert await client.get("nothing") is None
        finally:
            loop.set_task_factory(None)


async def test_a_cancellation_reaches_a_command_however_often_it_comes(redis_url: str) -> None:
    async with ours(redis_url) as client:

        async def forever() -> None:
            while True:
                await client.ping()

        for turn in range(300):
            task = asyncio.create_task(forever())
            for _ in range(turn % 30):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(5):
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert await client.ping()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_server_that_resets_at_any_moment_is_away_and_nothing_else(factory: object) -> None:
    """Ask a server that hangs up in every phase: before, within and after an answer."""

    async def main() -> None:
        turns = iter(range(10_000))

        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            turn = next(turns) % 4
            if turn:
                await reader.read(100)
                writer.write(b"+OK\r\n" if turn == 2 else b"$100\r\nhalf")
            if turn == 3:
                await asyncio.sleep(0)
            writer.transport.abort()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, ours(f"redis://127.0.0.1:{port}/0") as client:
            met = await asyncio.gather(*(client.ping() for _ in range(100)), return_exceptions=True)
        assert all(isinstance(error, AWAY) for error in met if error is not True), met

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(main())


async def test_a_transport_that_is_closed_already_is_a_connection_that_is_gone(
    redis_url: str,
) -> None:
    async with ours(redis_url) as client:
        connection = await client.connection_pool.get_connection()

        class Closed:
            """A writer as uvloop's is once its handle is closed."""

            def writelines(self, _: object) -> None:
                raise RuntimeError("the handler is closed")

            def close(self) -> None:
                pass

        real, connection._writer = connection._writer, Closed()
        with pytest.raises(Gone, match="handler is closed"):
            await connection.send_command("PING")
        real.close()
        await client.connection_pool.release(connection)
        assert await client.ping()
