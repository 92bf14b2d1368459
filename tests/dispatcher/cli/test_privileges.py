import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.privileges import before_exec, unprivileged
from tests.requires import missing

LOOK = """
import json, os, sys
path = sys.argv[1]
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t") for line in lines if ":\\t" in line)
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(), "found": os.access(path, os.R_OK | os.X_OK),
    "read": open(path).read(), "effective": int(status["CapEff"], 16),
    "permitted": int(status["CapPrm"], 16),
}))
"""
DAC_OVERRIDE = 1 << 1


def looked(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)],
        preexec_fn=before_exec(signal.SIGTERM, unprivileged()),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """Give a program in a folder that only its owner may enter."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    path = folder / "program"
    path.write_text("it reads")
    path.chmod(0o700)
    return path


def test_root_becomes_nobody_that_reaches_files_and_can_do_nothing_else(hidden: Path) -> None:
    if os.geteuid() != 0:
        missing("root", "only root has privileges to drop")
    found = looked(hidden)
    account = unprivileged()
    assert account is not None
    assert found == {
        "uid": account.uid,
        "groups": [],
        "found": True,
        "read": "it reads",
        "effective": DAC_OVERRIDE,
        "permitted": DAC_OVERRIDE,
    }


def test_anybody_else_stays_who_they_are(hidden: Path) -> None:
    if os.geteuid() == 0:
        missing("an ordinary user", "this is root")
    assert looked(hidden)["uid"] == os.geteuid()
