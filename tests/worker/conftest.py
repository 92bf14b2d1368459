"""Fixtures of the loop's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.factories import room_in
from tests.worker.pulling import Desk
from worker.room import Room


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def room(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Room]:
    async with room_in(database_url, redis_url, tmp_path) as opened:
        yield opened
