from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from shared import settings
from shared.errors import ConfigurationError
from shared.settings import DEFAULT_IMAGES, load, variables

SEEDS: dict[str, tuple[str, Callable[[settings.Settings], object], object]] = {
    "SKILLS_MAX_FILE_BYTES": ("2048", lambda s: s.max.file_bytes, 2048),
    "SKILLS_MAX_HTTP_RESPONSE_BYTES": ("4096", lambda s: s.max.http_response_bytes, 4096),
    "SKILLS_MAX_SANDBOX_OUTPUT_CHARS": ("77", lambda s: s.max.sandbox_output_chars, 77),
    "SKILLS_SANDBOX_TIMEOUT_MS": ("1234", lambda s: s.sandbox.timeout_ms, 1234),
    "SKILLS_SANDBOX_NETWORK_ENABLED": ("1", lambda s: s.sandbox.network_enabled, True),
    "SKILLS_ALLOWED_SANDBOX_IMAGES": (
        "busybox:1, ,python:3.12-alpine,",
        lambda s: s.sandbox_images,
        (*DEFAULT_IMAGES, "busybox:1"),
    ),
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*variables(), "DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", SEEDS)
def test_a_name_of_the_seeds_works_as_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, read, expected = SEEDS[name]
    monkeypatch.setenv(name, text)
    assert read(load()) == expected


def test_the_defaults_are_those_of_the_seeds() -> None:
    found = load()
    assert found.max.file_bytes == 1_048_576
    assert found.max.http_response_bytes == 256_000
    assert found.max.sandbox_output_chars == 100_000
    assert found.sandbox.timeout_ms == 10_000
    assert found.sandbox.network_enabled is False
    assert found.sandbox_images == ("alpine:3.20", "node:22-alpine", "python:3.12-alpine")
    assert found.http.port == 20128


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("SKILLS_WORKER_CONCURENCY", "SKILLS_WORKER_CONCURRENCY"),
        ("SKILLS_DATABASE", "SKILLS_DATABASE_URL"),
        ("SKILLS_MAX_FILE_BYTE", "SKILLS_MAX_FILE_BYTES"),
    ],
)
def test_an_unknown_variable_stops_and_names_the_nearest(
    wrong: str, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wrong, "1")
    with pytest.raises(ConfigurationError, match=f"Unknown setting {wrong}.*{near}"):
        load()


def test_a_wrong_value_is_named_by_its_variable_without_being_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKILLS_HTTP_PORT", "s3cret")
    with pytest.raises(ConfigurationError, match="SKILLS_HTTP_PORT") as caught:
        load()
    assert "s3cret" not in caught.value.message


def test_an_unknown_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLS_WORKER_QUEUES", "direct,fast")
    with pytest.raises(ConfigurationError, match="SKILLS_WORKER_QUEUES: name direct, sandbox"):
        load()


def test_the_plain_data_dir_counts_until_ours_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", "/srv/theirs")
    assert load().data.dir == Path("/srv/theirs")
    monkeypatch.setenv("SKILLS_DATA_DIR", "/srv/ours")
    assert load().data.dir == Path("/srv/ours")


def test_an_override_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLS_HTTP_PORT", "8080")
    assert load(http={"port": 9090}).http.port == 9090


def test_settings_are_frozen_and_keep_the_token_out_of_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKILLS_MANAGEMENT_TOKEN", "hush-hush")
    found = load()
    assert "hush-hush" not in repr(found)
    with pytest.raises(ValidationError):
        found.http = settings.Http()  # type: ignore[misc]  # that it is refused is the point
