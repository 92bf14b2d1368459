"""The application behind a real socket of this process, and requests that arrive as written."""

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI

from tests.signals import until


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[int]:
    """Serve an application whose lifespan has begun; give its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve(sockets=[listener]))

        async def started() -> bool:
            return server.started

        await until(started, "the server listens")
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def send(port: int, request: Mapping[str, Any]) -> Answer:
    """Send a request whose path and headers no client library has tidied up."""
    return await asyncio.to_thread(exchange, port, request)


def exchange(port: int, request: Mapping[str, Any]) -> Answer:
    """Do what ``send`` does, in a thread."""
    body = request.get("body")
    content = None if body is None else json.dumps(body).encode()
    headers = {
        **({} if body is None else {"Content-Type": "application/json"}),
        **request.get("headers", {}),
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request["method"], request["path"], content, headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return Answer(response.status, dict(response.headers), text)
    finally:
        connection.close()
