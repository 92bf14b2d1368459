from collections.abc import AsyncIterator

import pytest

from shared.settings import Settings
from tests.worker.sandbox.containers import own_settings, started
from worker.sandbox.run import Sandbox


@pytest.fixture
def settings() -> Settings:
    return own_settings()


@pytest.fixture
async def sandbox(docker: None, settings: Settings) -> AsyncIterator[Sandbox]:
    async with started(settings) as running:
        yield running
