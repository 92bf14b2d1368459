"""Fixtures of the loop's tests."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.factories import redis_to
from tests.worker.pulling import Desk


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with redis_to(redis_url) as client:
        yield client


@pytest.fixture
def desk() -> Desk:
    return Desk()
