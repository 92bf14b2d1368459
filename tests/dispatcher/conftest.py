"""Fixtures: a dispatcher's application in this process, over real Postgres and Redis."""

from collections.abc import AsyncIterator

import pytest

from shared.settings import Settings, load
from tests.dispatcher.fleet import Fleet, opened
from tests.services import MANAGEMENT_TOKEN


@pytest.fixture
def settings(database_url: str, redis_url: str) -> Settings:
    return load(
        database={"url": database_url},
        redis={"url": redis_url},
        management={"token": MANAGEMENT_TOKEN},
    )


@pytest.fixture
async def fleet(settings: Settings) -> AsyncIterator[Fleet]:
    async with opened(settings) as found:
        yield found
