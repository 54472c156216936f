from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.commands.registry import closed
from gateway.config import load
from gateway.operator_token import open_token
from tests.commands.node_in_use import LUNA, NodeInUse, node_in_use

INDEX = "search/embedded-index"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeInUse]:
    async with node_in_use(tmp_path) as running:
        yield running


async def test_list_shows_each_route_with_its_proof_or_why_it_is_closed(node: NodeInUse) -> None:
    told = await node.run("registry", "list")
    assert (told.returncode, told.stderr) == (0, "")
    heading, *rows = told.stdout.splitlines()
    assert " ".join(heading.split()) == "route model availability reason last probe valid until p50 ms errors"
    by_route = {row.split()[0]: row.split()[1:] for row in rows}
    assert set(by_route) == {INDEX, f"ai/{LUNA}"}
    assert by_route[INDEX][:3] == ["-", "available", "-"]
    assert by_route[f"ai/{LUNA}"][:3] == [LUNA, "unavailable", "unreachable"]
    assert by_route[f"ai/{LUNA}"][4] == "-"
    assert "\x1b" not in told.stdout


async def test_list_as_json_tells_of_the_last_day_and_the_totals_too(node: NodeInUse) -> None:
    told = json.loads((await node.run("registry", "list", "--json")).stdout)
    assert {each["route"] for each in told["routes"]} == {INDEX, f"ai/{LUNA}"}
    assert all(each["recent"]["hours"] == 24 for each in told["routes"])
    assert (told["totals"]["open"], told["totals"]["reasons"]) == (1, {"unreachable": 1})


async def test_probe_proves_anew_and_ends_with_1_where_what_was_asked_for_is_closed(node: NodeInUse) -> None:
    before = json.loads((await node.run("registry", "list", "--json")).stdout)["routes"]
    fine = await node.run("registry", "probe", INDEX, "--json")
    assert fine.returncode == 0
    (told,) = json.loads(fine.stdout)["routes"]
    assert told["lastProbeAt"] > next(each["lastProbeAt"] for each in before if each["route"] == INDEX)
    for name in (LUNA, f"ai/{LUNA}"):
        shut = await node.run("registry", "probe", name)
        assert (shut.returncode, shut.stdout.split()[-6:-4]) == (1, ["unavailable", "unreachable"]), shut
    everything = await node.run("registry", "probe", "--json")
    assert (everything.returncode, len(json.loads(everything.stdout)["routes"])) == (1, 2)


async def test_probe_of_what_has_no_route_says_so(node: NodeInUse) -> None:
    told = await node.run("registry", "probe", "gateway/smart")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("404 not_found: no route is named gateway/smart")


def test_without_a_node_it_cannot_be_reached(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        config.write_text(f'[node]\ndata_dir = "{tmp_path}"\noperator_listen = "127.0.0.1:{port}"\n')
        for command in ("list", "probe"):
            told = CliRunner().invoke(main, ["registry", command, "--config", str(config)])
            assert (told.exit_code, told.stdout) == (3, "")
            assert "what can be sold is proved by the running node" in told.stderr
        open_token(load(config, {}), create=True)
        for command in ("list", "probe"):
            told = CliRunner().invoke(main, ["registry", command, "--config", str(config)])
            assert (told.exit_code, told.stdout) == (3, "")
            assert f"no node answers at http://127.0.0.1:{port}/" in told.stderr


def test_a_model_is_open_while_one_of_its_routes_is_and_other_routes_stand_for_themselves() -> None:
    def route(name: str, model: str | None, availability: str) -> dict[str, str | None]:
        return {"route": name, "model": model, "availability": availability}

    told = [
        route("ai/a", "a", "unavailable"),
        route("ai/a-2", "a", "degraded"),
        route("ai/b", "b", "unproven"),
        route("ai/b-2", "b", "unavailable"),
        route("search/x", None, "available"),
        route("search/y", None, "unavailable"),
    ]
    assert closed(told) == ["b", "search/y"]
