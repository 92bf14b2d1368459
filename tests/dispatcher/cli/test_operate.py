import json
from pathlib import Path

import asyncpg
import pytest

from dispatcher.cli import datadir
from dispatcher.cli.datadir import Credentials
from shared import keys
from tests.dispatcher.cli.command import skillfleet


@pytest.fixture
def fleet(database_url: str, redis_url: str) -> dict[str, str]:
    return {"SKILLS_DATABASE_URL": database_url, "SKILLS_REDIS_URL": redis_url}


def test_a_setting_is_changed_shown_and_taken_back(fleet: dict[str, str]) -> None:
    changed = skillfleet("settings", "set", "executionTimeoutMs", "1234", "--json", env=fleet)
    assert changed.returncode == 0, changed.stderr
    assert json.loads(changed.stdout)["executionTimeoutMs"] == 1234
    shown = skillfleet("settings", "list", env=fleet)
    assert ["executionTimeoutMs", "1234"] in [line.split() for line in shown.stdout.splitlines()]
    skillfleet("settings", "set", "executionTimeoutMs", "null", env=fleet)
    listed = skillfleet("settings", "list", "--json", env=fleet)
    assert json.loads(listed.stdout)["executionTimeoutMs"] == 30_000


def test_a_secret_setting_is_never_shown(fleet: dict[str, str]) -> None:
    changed = skillfleet("settings", "set", "skillsmpApiKey", "very-secret", "--json", env=fleet)
    assert changed.returncode == 0, changed.stderr
    assert "very-secret" not in changed.stdout + changed.stderr
    assert json.loads(changed.stdout)["skillsmpApiKey"] is not None


def test_an_unknown_setting_is_refused_with_those_there_are(fleet: dict[str, str]) -> None:
    refused = skillfleet("settings", "set", "skillsenabled", "true", env=fleet)
    assert refused.returncode == 2
    assert "skillsEnabled" in refused.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("executionTimeoutMs", "soon"), ("noSuchSetting", "1")]
)
def test_a_wrong_setting_is_refused_as_wrong_usage(
    fleet: dict[str, str], name: str, value: str
) -> None:
    refused = skillfleet("settings", "set", name, value, env=fleet)
    assert refused.returncode == 2
    assert name in refused.stderr
    assert refused.stdout == ""


async def test_a_change_raises_the_epoch_that_all_processes_watch(
    fleet: dict[str, str], database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    before = await connection.fetchval("SELECT epoch FROM registry_epoch")
    refreshed = skillfleet("skills", "refresh", env=fleet)
    after = await connection.fetchval("SELECT epoch FROM registry_epoch")
    await connection.close()
    assert refreshed.returncode == 0, refreshed.stderr
    assert int(refreshed.stdout) == after > before


async def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(
    fleet: dict[str, str], database_url: str
) -> None:
    made = skillfleet("keys", "create", "gateway", "--scope", "execute:skills", env=fleet)
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=1)
    key = await keys.find(pool, secret)
    assert key is not None
    assert key.scopes == {"execute:skills"}

    listed = skillfleet("keys", "list", "--json", env=fleet)
    assert secret not in listed.stdout
    assert [row["id"] for row in json.loads(listed.stdout)] == [key.id]
    assert key.id in skillfleet("keys", "list", env=fleet).stdout

    changed = skillfleet("keys", "change", key.id, "--rate", "60", "--weight", "2", env=fleet)
    assert (changed.returncode, changed.stdout) == (0, ""), changed.stderr
    assert "rate 60 a minute, weight 2" in changed.stderr
    assert skillfleet("keys", "change", key.id, env=fleet).returncode == 2
    lifted = skillfleet("keys", "change", key.id, "--unlimited", env=fleet)
    assert "rate unlimited" in lifted.stderr

    revoked = skillfleet("keys", "revoke", key.id, env=fleet)
    assert revoked.returncode == 0, revoked.stderr
    found = await keys.find(pool, secret)
    await pool.close()
    assert found is not None
    assert not found.usable()
    assert skillfleet("keys", "revoke", "key_of_nobody", env=fleet).returncode == 1


def test_a_listed_id_is_never_folded(fleet: dict[str, str]) -> None:
    scopes = [word for scope in keys.SCOPES for word in ("--scope", scope)]
    made = skillfleet("keys", "create", "a long name " * 9, *scopes, "--json", env=fleet)
    assert json.loads(made.stdout)["id"] in skillfleet("keys", "list", env=fleet).stdout


def test_stdout_holds_the_key_alone_also_when_redis_is_away(database_url: str) -> None:
    away = {"SKILLS_DATABASE_URL": database_url, "SKILLS_REDIS_URL": "redis://127.0.0.1:1/0"}
    made = skillfleet("keys", "create", "gateway", env=away)
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.split()) == 1, made.stdout
    assert "registry.publish.failed" in made.stderr


def test_an_unknown_scope_is_wrong_usage(fleet: dict[str, str]) -> None:
    refused = skillfleet("keys", "create", "x", "--scope", "everything", env=fleet)
    assert refused.returncode == 2
    assert "everything" in refused.stderr


def test_the_data_directory_of_an_up_is_enough(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    nowhere = skillfleet("keys", "list", "--data-dir", str(tmp_path))
    assert nowhere.returncode == 2
    assert "SKILLS_DATABASE_URL" in nowhere.stderr
    datadir.save(tmp_path, Credentials("http://x", "t", "k", "id", database_url, redis_url))
    for variables in ({}, {"SKILLS_DATABASE_URL": ""}):
        listed = skillfleet("keys", "list", "--data-dir", str(tmp_path), env=variables)
        assert listed.returncode == 0, listed.stderr


def test_a_schema_that_is_too_old_and_a_server_that_is_away_say_what_to_do(
    empty_database_url: str, tmp_path: Path
) -> None:
    old = skillfleet("keys", "list", env={"SKILLS_DATABASE_URL": empty_database_url})
    assert old.returncode == 1
    assert "skillfleet migrate" in old.stderr
    migrated = skillfleet("migrate", env={"SKILLS_DATABASE_URL": empty_database_url})
    assert migrated.returncode == 0, migrated.stderr
    assert migrated.stdout.strip().isdigit()
    assert (
        skillfleet("keys", "list", env={"SKILLS_DATABASE_URL": empty_database_url}).returncode == 0
    )

    url = f"postgresql://x@/x?host={tmp_path}"
    for command in (("migrate",), ("keys", "list")):
        away = skillfleet(*command, env={"SKILLS_DATABASE_URL": url})
        assert away.returncode == 4, away.stderr
        assert "SKILLS_DATABASE_URL" in away.stderr
        assert "Traceback" not in away.stderr


def test_wrong_usage_and_help() -> None:
    assert skillfleet("no-such-command").returncode == 2
    shown = skillfleet("--help")
    assert shown.returncode == 0
    for command in ("up", "dispatcher", "worker", "migrate", "settings", "keys", "skills"):
        assert f" {command} " in shown.stdout


def test_pauses_are_added_listed_and_removed(fleet: dict[str, str]) -> None:
    assert skillfleet("pauses", "add", "owner", "key-1", env=fleet).returncode == 0
    again = skillfleet("pauses", "add", "owner", "key-1", env=fleet)
    assert (again.returncode, "was paused already" in again.stderr) == (0, True)
    (shown,) = json.loads(skillfleet("pauses", "list", "--json", env=fleet).stdout)
    assert (shown["kind"], shown["name"], shown["pausedBy"]) == ("owner", "key-1", "cli")
    assert skillfleet("pauses", "remove", "owner", "key-1", env=fleet).returncode == 0
    gone = skillfleet("pauses", "remove", "owner", "key-1", env=fleet)
    assert (gone.returncode, "pauses list" in gone.stderr) == (1, True)
    wrong = skillfleet("pauses", "add", "worker", "x", env=fleet)
    assert (wrong.returncode, "queue, skill, owner" in wrong.stderr) == (2, True)
