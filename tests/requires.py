"""Parts a machine may lack: a user gets a skip that says why, CI a failure.

``SKILLFLEET_REQUIRE=docker,…`` names the parts whose absence is a failure.
"""

import os
from typing import NoReturn

import pytest


def missing(part: str, reason: str) -> NoReturn:
    """Skip the running test, or fail it when this machine promised to have the part."""
    required = os.environ.get("SKILLFLEET_REQUIRE", "").split(",")
    if part in (name.strip() for name in required):
        pytest.fail(f"{part} is required here (SKILLFLEET_REQUIRE) but missing: {reason}")
    pytest.skip(f"needs {part}: {reason}")
