"""What `deploy/` and the README tell operators: configurations load, files are there, commands and options exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

from gateway.actors.store import Reason
from gateway.cli import main
from gateway.config import SECTIONS, Configuration, ConfigurationError, StoreSection, load
from gateway.http.routes import HEALTH
from gateway.node import ACTOR_GRACE_S
from gateway.registry.payment.asset import checksum

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DEPLOY.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
PLACEHOLDER = "0xYourAddress"
ADDRESS = checksum("0x" + "ab" * 20)
OF_SQLITE = {Reason.LOCKED, Reason.FILE_REPLACED}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+]\(([^)#]+)\)")
NAMED_FILE = re.compile(r"(?<![\w/.-])(?:gateway|tests|deploy|requirements)/[\w./-]+\.\w+")
SECONDS = re.compile(r"([0-9]+)s\Z")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def loaded(text: str, tmp_path: Path) -> Configuration:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return load(path, {})


def with_payment(text: str) -> str:
    """Return the configuration with its commented payment section in force."""
    head, _, section = text.partition("# [payment]")
    assert section
    return head + re.sub(r"^# ", "", "# [payment]" + section, flags=re.MULTILINE).replace(PLACEHOLDER, ADDRESS)


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.toml")), ids=lambda path: path.name)
def test_a_configuration_of_deploy_loads_with_and_without_payment(path: Path, tmp_path: Path) -> None:
    bare = load(path, {})
    assert (bare.shared_store, bare.payment.configured, bare.node.name) == (True, False, path.stem)
    assert loaded(with_payment(path.read_text()), tmp_path).payment.configured


def test_the_configurations_of_two_nodes_differ_by_name_and_data_directory_only() -> None:
    one, two = (load(DEPLOY / f"node-{number}.toml", {}) for number in (1, 2))
    assert one.data_dir != two.data_dir
    node = attrs.evolve(two.node, name=one.node.name, data_dir=one.node.data_dir)
    assert attrs.evolve(two, node=node, source=one.source) == one


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page in PAGES for text in blocks(page, "toml")],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_a_configuration_in_a_page_loads(page: Path, text: str, tmp_path: Path) -> None:
    # What is shown may be the part that matters there, beside a store of several nodes.
    tree = tomllib.loads(text)
    assert tree.keys() <= SECTIONS
    needed = "" if tree.get("store", {}).get("url") else 'url = "postgresql://gateway@db.example/gateway"\n'
    configuration = loaded(text.replace(PLACEHOLDER, ADDRESS).replace("[store]\n", f"[store]\n{needed}", 1), tmp_path)
    assert configuration.shared_store == ("store" in tree), page


def test_an_address_that_nobody_filled_in_is_refused(tmp_path: Path) -> None:
    (text,) = (each for each in blocks(ROOT / "README.md", "toml") if PLACEHOLDER in each)
    with pytest.raises(ConfigurationError) as refused:
        loaded(text, tmp_path)
    assert [each.pointer for each in refused.value.violations] == ["/payment/pay_to"]


def test_the_page_tells_the_defaults_of_the_store() -> None:
    told: dict[str, Any] = {}
    for text in blocks(DEPLOY / "several-nodes.md", "toml"):
        told |= tomllib.loads(text).get("store", {})
    defaults = attrs.asdict(StoreSection())
    assert told.keys() == defaults.keys()
    assert {name: told[name] for name in told.keys() - {"url", "password_file"}} == {
        name: defaults[name] for name in defaults.keys() - {"url", "password_file"}
    }


def test_the_page_tells_every_reason_for_which_a_postgresql_store_is_unavailable() -> None:
    page = (DEPLOY / "several-nodes.md").read_text()
    table = page.partition("| reason |")[2].partition("\n\n")[0]
    told = {word for row in table.splitlines()[2:] for word in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert told == set(Reason) - OF_SQLITE


# -- Compose, the image, the load balancer, systemd --------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return tree


def mounts(compose: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield source and target of every volume."""
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            yield source, target


def test_what_compose_mounts_is_there(compose: dict[str, Any]) -> None:
    files = {source for source, _ in mounts(compose) if source.startswith(".")}
    assert files
    assert [each for each in files if not (DEPLOY / each).is_file()] == []
    assert {source for source, _ in mounts(compose)} - files == set(compose["volumes"])


def test_every_secret_of_compose_is_made_by_the_page_and_kept_out_of_the_repository(compose: dict[str, Any]) -> None:
    page = (DEPLOY / "several-nodes.md").read_text()
    for secret in compose["secrets"].values():
        assert f"> {secret['file']}" in page
        assert secret["file"].partition("/")[0] + "/" in (DEPLOY / ".gitignore").read_text().splitlines()
    used = [each for service in compose["services"].values() for each in service.get("secrets", ())]
    assert {each["source"] if isinstance(each, dict) else each for each in used} == set(compose["secrets"])


@pytest.mark.parametrize("name", ["node-1", "node-2"])
def test_compose_gives_a_node_what_its_configuration_names(compose: dict[str, Any], name: str) -> None:
    configuration, service = load(DEPLOY / f"{name}.toml", {}), compose["services"][name]
    served = {target: source for source, target in mounts({"services": {name: service}})}
    assert served["/etc/gateway/gateway.toml"] == f"./{name}.toml"
    assert served[str(configuration.keys_dir)] == "keys"
    assert served[str(configuration.data_dir.parent)] == name
    assert [each["target"] for each in service["secrets"]] == [configuration.store.password_file]
    assert configuration.store.url.rpartition("@")[2].partition("/")[0] in compose["services"]
    balancer = compose["services"]["load-balancer"]["networks"]["inside"]["ipv4_address"]
    assert configuration.quota.trusted_proxies == (balancer,)


def test_whoever_stops_a_node_waits_until_it_has_drained(compose: dict[str, Any]) -> None:
    drained = Configuration().node.drain_s + ACTOR_GRACE_S
    unit = (DEPLOY / "gateway@.service").read_text()
    told = [compose["services"][name]["stop_grace_period"] for name in ("node-1", "node-2")]
    told += re.findall(r"^TimeoutStopSec=(.+)$", unit, re.MULTILINE)
    assert len(told) == 3
    for each in told:
        found = SECONDS.match(each)
        assert found is not None
        assert int(found[1]) > drained


def test_every_node_of_compose_stands_behind_the_load_balancer(compose: dict[str, Any]) -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    servers = re.findall(r"^\s+server \S+ (\S+):(\d+)", text, re.MULTILINE)
    nodes = {name for name in compose["services"] if name.startswith("node-")}
    ports = {load(DEPLOY / f"{name}.toml", {}).node.listen[0].rpartition(":")[2] for name in nodes}
    assert {host for host, _ in servers} == nodes
    assert {port for _, port in servers} == ports
    (checked,) = re.findall(r"http-check send .*uri (\S+)", text)
    assert checked == "/readyz"
    assert checked in HEALTH


def test_the_image_is_built_of_what_is_there_and_sent() -> None:
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied
    assert [each for each in copied if not (ROOT / each).exists()] == []
    assert {f"!{each}" for each in copied} == {line for line in sent if line.startswith("!")}


def test_the_unit_serves_the_configuration_of_its_instance() -> None:
    unit = (DEPLOY / "gateway@.service").read_text()
    (started,) = re.findall(r"^ExecStart=\S+/gateway (.+)$", unit, re.MULTILINE)
    assert started == "serve --config /etc/gateway/%i.toml"
    assert "Environment=GATEWAY_STORE__PASSWORD_FILE=" in unit
    assert "password_file" in attrs.fields_dict(StoreSection)


def test_what_the_sandbox_takes_back_of_the_unit_is_set_there() -> None:
    unit, taken_back = (
        dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE))
        for name in ("gateway@.service", "sandbox.conf")
    )
    assert taken_back.pop("Delegate") == "yes"
    assert taken_back.pop("SystemCallFilter") == "@mount"
    assert taken_back.keys() <= unit.keys()
    assert {name for name, value in taken_back.items() if value not in {"no", "default"}} == set()


# -- commands ----------------------------------------------------------------------------------------------------------


def said(page: Path) -> Iterator[str]:
    """Yield every command line of a page: the lines of its shell blocks, and the code in its text."""
    text = page.read_text()
    for block in blocks(page, "sh"):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of ours in a command line; `./run test` is pytest's."""
    for part in re.split(r"&&|\|\||[|;]", line):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            continue
        in_compose = words[:3] == ["docker", "compose", "run"]
        for place, word in enumerate(words):
            ours = word in {"gateway", "./run"} or word.endswith("/bin/gateway")
            if (ours and (place == 0 or "--" in words[:place])) or (in_compose and word.startswith("node-")):
                if words[place + 1 : place + 2] not in ([], ["test"]):
                    yield words[place + 1 :]
                break


CALLS = [(page.name, arguments) for page in PAGES for line in said(page) for arguments in calls(line)]


def named(arguments: list[str]) -> tuple[list[str], click.Command, list[str]]:
    """Return the path of the command that is called, the command, and what is left of the arguments."""
    command: click.Command = main
    path: list[str] = []
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        found = command.commands.get(word)
        assert found is not None, f"there is no command {' '.join([*path, word])}"
        command, path = found, [*path, word]
    return path, command, arguments[len(path) :]


def test_the_pages_call_the_commands_that_operators_need() -> None:
    called = {" ".join(named(arguments)[0]) for _, arguments in CALLS}
    assert called >= {"demo", "serve", "doctor", "migrate", "keys rotate", "operations list", "ledger verify"}


@pytest.mark.parametrize(("page", "arguments"), CALLS)
def test_a_command_in_a_page_exists_with_its_options(page: str, arguments: list[str]) -> None:
    path, command, rest = named(arguments)
    assert CliRunner().invoke(main, [*path, "--help"]).exit_code == 0
    known = {name for each in command.params for name in each.opts}
    own = takewhile(lambda word: word != "--", rest)  # what follows is a command of its own
    used = {word.partition("=")[0] for word in own if word.startswith("-")}
    assert used <= known, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    linked = [target for target in LINK.findall(text) if "://" not in target]
    assert [each for each in linked if not (page.parent / each).exists()] == []
    assert [each for each in sorted(set(NAMED_FILE.findall(text))) if not (ROOT / each).exists()] == []
