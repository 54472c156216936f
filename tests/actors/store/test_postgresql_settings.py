from __future__ import annotations

import pytest

from gateway.actors.store import PostgresqlSettings
from gateway.actors.store.postgresql_settings import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://node:hunter2@db/gateway", "postgresql://node@db/gateway"),
        ("postgres://node@db:6432/gateway?sslmode=require", "postgres://node@db:6432/gateway?sslmode=require"),
        ("postgresql://db/gateway?password=hunter2", "postgresql://db/gateway"),
        ("postgresql://db/g?user=u&password=hunter2&sslmode=require", "postgresql://db/g?user=u&sslmode=require"),
        ("postgresql://u:hunter2@a:1,b:2/g?sslpassword=hunter2", "postgresql://u@a:1,b:2/g"),
    ],
)
def test_a_password_in_the_url_is_used_and_never_shown(url: str, shown: str) -> None:
    settings = PostgresqlSettings(url)
    assert settings.shown == without_secrets(url) == shown
    assert "hunter2" not in repr(settings) + settings.place
    if "hunter2" in url:
        assert "hunter2" in settings.members(server={}).values()


def test_a_password_beside_the_url_goes_before_one_in_it() -> None:
    settings = PostgresqlSettings("postgresql://node:old@db/gateway", password="new")
    assert settings.members(server={})["password"] == "new"
    assert "new" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://db/gateway", "begins with postgresql://"),
        ("postgresql://db/gateway?sslmod=require", "sslmod"),
        ("postgresql://node:hunter2%zz@db/gateway", "not percent-encoded"),
        ("postgresql://node:hun%20ter%@db/gateway", "not percent-encoded"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_its_password(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        PostgresqlSettings(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"readers": 0}, {"lease_ms": 50}, {"connect_timeout_s": 0}, {"statement_timeout_s": 0}], ids=str
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PostgresqlSettings("postgresql://db/gateway", **wrong)  # type: ignore[arg-type]


def test_settings_of_the_session_are_sent_beside_those_of_the_url() -> None:
    settings = PostgresqlSettings("postgresql://db/gateway?options=-c%20work_mem%3D8MB&keepalives_idle=99")
    members = settings.members(server={"statement_timeout": 1000, "search_path": "my schema"}, application_name="x")
    assert members["options"] == r"-c work_mem=8MB -c statement_timeout=1000 -c search_path=my\ schema"
    assert (members["keepalives_idle"], members["keepalives"], members["application_name"]) == ("99", 1, "x")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://db.example/gateway", "db.example:5432"),
        ("postgresql://a:1,b:2/gateway", "a:1, b:2"),
        ("postgresql:///gateway?host=/run/postgresql&port=6432", "/run/postgresql:6432"),
        ("postgresql:///gateway", "localhost:5432"),
    ],
)
def test_its_place_is_where_an_operator_looks(url: str, place: str) -> None:
    assert PostgresqlSettings(url).place == place
