import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.cli import datadir
from dispatcher.cli.datadir import Credentials, DataDirBusy
from shared.errors import SkillfleetError
from tests.requires import missing

CREDENTIALS = Credentials(
    url="http://127.0.0.1:1",
    management_token="token",
    api_key="key",
    api_key_id="key_1",
    database_url="postgresql://x",
    redis_url="unix:///x",
)

HOLD = """
import sys
from pathlib import Path
from dispatcher.cli import datadir
with datadir.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

# Starts a child that inherits the lock, says so, and dies without a word, like a killed `up`.
LEAVE = """
import os, subprocess, sys
from pathlib import Path
from dispatcher.cli import datadir
with datadir.locked(Path(sys.argv[1])) as lock:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             pass_fds=(lock,))
    print(child.pid, flush=True)
    os._exit(0)
"""

KILL = "import os, sys; sys.stdin.read(1); os.kill(int(sys.argv[1]), 9)"


def test_credentials_are_for_their_owner_only_and_come_back(tmp_path: Path) -> None:
    path = datadir.save(tmp_path, CREDENTIALS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())) == {
        "url",
        "managementToken",
        "apiKey",
        "apiKeyId",
        "databaseUrl",
        "redisUrl",
    }
    assert datadir.load(tmp_path) == CREDENTIALS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x"}', "null", '{"other": 1}'])
def test_credentials_that_are_not_whole_count_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "credentials.json").write_text(text)
    assert datadir.load(tmp_path) is None


def test_two_at_once_on_one_folder_are_refused_with_the_holders_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirBusy, match=f"process {holder.pid}"), datadir.locked(tmp_path):
            pass
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait(20)
    with datadir.locked(tmp_path):
        pass


def test_what_a_killed_one_left_running_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout is not None
        left = int(killed.stdout.readline())
        killed.wait(20)
        os.kill(left, 0)  # it lives, and holds the lock
        end_it = subprocess.Popen([sys.executable, "-c", KILL, str(left)], stdin=subprocess.PIPE)
        assert end_it.stdin is not None
        end_it.stdin.write(b"x")
        end_it.stdin.close()
        with datadir.locked(tmp_path):
            end_it.wait(20)


def test_a_process_that_nobody_reaped_does_not_count_as_running() -> None:
    if sys.platform != "linux":
        missing("linux", "only /proc tells what nobody reaped")
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as one:
        assert datadir.alive(one.pid)
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        os.kill(one.pid, 0)  # its number is still taken
        assert not datadir.alive(one.pid)


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SkillfleetError, match="--data-dir"):
        datadir.prepare(tmp_path / "file" / "data")
