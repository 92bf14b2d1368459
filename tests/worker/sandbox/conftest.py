from collections.abc import AsyncIterator

import pytest

from tests.worker.sandbox.containers import own_settings, started
from worker.sandbox.run import Sandbox


@pytest.fixture
async def sandbox(docker: None) -> AsyncIterator[Sandbox]:
    async with started(own_settings()) as running:
        yield running
