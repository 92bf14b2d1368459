"""Fixtures of the tables' tests."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from shared.executions import Executions
from tests.factories import pool_to
from tests.shared.doors import ECHO


@pytest.fixture
async def pool(database_url: str) -> "AsyncIterator[asyncpg.Pool[asyncpg.Record]]":
    async with pool_to(database_url) as opened:
        yield opened


@pytest.fixture
def executions(pool: "asyncpg.Pool[asyncpg.Record]") -> Executions:
    return Executions(pool, ECHO)
