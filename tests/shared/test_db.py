from pathlib import Path

import pytest

from shared import db
from shared.errors import ConfigurationError, Unavailable
from tests.factories import make_settings


@pytest.mark.parametrize("url", ["mysql://localhost/x", "postgresql://localhost:port/x"])
async def test_what_is_no_postgres_url_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SKILLS_DATABASE_URL is not a Postgres URL"):
        await db.connect(make_settings(url), name="test")


async def test_a_server_that_is_away_is_named_without_the_password(tmp_path: Path) -> None:
    for url, place in (
        ("postgresql://u:hush-hush@127.0.0.1:1/x", "127.0.0.1"),
        (f"postgresql://u:hush-hush@/x?host={tmp_path}", ""),
    ):
        with pytest.raises(Unavailable, match=f"can't be reached .*{place}.*SKILLS_") as caught:
            await db.connect(make_settings(url), name="test")
        assert "hush-hush" not in caught.value.message
