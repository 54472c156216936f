from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Row, Statement, Store, Value
from gateway.config import structure
from gateway.keys import KINDS, Keys, KeysRefused, open_keys, rotate
from gateway.opening import open_engine
from gateway.shared_keys import SELECT_KNOWN, join_keys, known_keys


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgresql_url")) if request.param == "postgresql" else ""


@pytest.fixture
async def store(tmp_path: Path, url: str) -> AsyncIterator[Store]:
    configuration = structure({"node": {"data_dir": str(tmp_path)}, "store": {"url": url}})
    async with open_runtime() as runtime, open_engine(runtime, configuration) as opened:
        yield opened


async def known(store: Store) -> dict[str, str]:
    return known_keys(await store.fetch(SELECT_KNOWN))


class Late:
    """A store whose first look waits until both nodes look at it: as two nodes that start at once see it."""

    def __init__(self, store: Store, nodes: int) -> None:
        self.store, self.nodes, self.all_look = store, nodes, trio.Event()

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        return await self.store.commit(*statements, relaxed=relaxed)

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        found = await self.store.fetch(sql, parameters)
        self.nodes -= 1
        if self.nodes == 0:
            self.all_look.set()
        await self.all_look.wait()
        return found

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.store.fetch_many(queries)

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.store.look_up(queries)


async def test_the_first_node_makes_keys_and_the_store_knows_them(store: Store, tmp_path: Path) -> None:
    keys = await join_keys(store, tmp_path / "keys")
    assert await known(store) == keys.fingerprints()
    assert await join_keys(store, tmp_path / "keys") == keys


async def test_a_store_that_knew_only_its_pepper_knows_all_keys_after_a_start(store: Store, tmp_path: Path) -> None:
    keys = open_keys(tmp_path / "keys", create=True)
    prints = keys.fingerprints()
    await store.commit(Statement("INSERT INTO node_facts VALUES ('pepper-1', :value)", {"value": prints["pepper-1"]}))
    await join_keys(store, tmp_path / "keys")
    assert await known(store) == prints


async def test_a_node_with_copied_keys_joins_and_one_without_or_with_its_own_does_not(
    store: Store, tmp_path: Path
) -> None:
    await join_keys(store, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    await join_keys(store, tmp_path / "b")
    before = await known(store)
    (tmp_path / "empty").mkdir()
    open_keys(tmp_path / "own", create=True)
    for name in ("gone", "empty", "own"):
        with pytest.raises(KeysRefused, match="copy it from another node"):
            await join_keys(store, tmp_path / name)
    assert await known(store) == before
    assert list((tmp_path / "empty").iterdir()) == []


async def joined(store: Store, directories: Sequence[Path]) -> list[Keys | KeysRefused]:
    found: list[Keys | KeysRefused] = []

    async def join(directory: Path) -> None:
        try:
            found.append(await join_keys(store, directory))
        except KeysRefused as refused:
            found.append(refused)

    async with trio.open_nursery() as nursery:
        for directory in directories:
            nursery.start_soon(join, directory)
    return found


async def test_of_nodes_that_start_at_once_with_keys_of_their_own_one_joins(store: Store, tmp_path: Path) -> None:
    found = await joined(Late(store, 3), [tmp_path / name for name in "abc"])
    (keys,) = (each for each in found if isinstance(each, Keys))
    refusals = [str(each) for each in found if isinstance(each, KeysRefused)]
    assert len(refusals) == 2
    assert all("pepper-1.key is another key" in each for each in refusals)
    assert await known(store) == keys.fingerprints()


async def test_of_nodes_that_start_at_once_with_one_directory_all_join(store: Store, tmp_path: Path) -> None:
    found = await joined(Late(store, 3), [tmp_path / "keys"] * 3)
    assert all(isinstance(each, Keys) for each in found)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_is_refused_leaves_nothing_in_the_store(store: Store, tmp_path: Path, kind: str) -> None:
    """What it would leave, the nodes with the right keys would miss at their next start."""
    first, second = tmp_path / "a", tmp_path / "b"
    open_keys(first, create=True)
    second.mkdir()
    for each in first.iterdir():
        if each.name != f"{kind}-1.key":
            (second / each.name).write_bytes(each.read_bytes())
            (second / each.name).chmod(0o600)
    open_keys(second, create=True)
    for other in KINDS:
        rotate(second, other)
    late = Late(store, 2)
    found: list[str] = []

    async def join_second() -> None:
        with pytest.raises(KeysRefused) as caught:
            await join_keys(late, second)
        found.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join_second)
        await join_keys(store, first)
        await late.fetch(SELECT_KNOWN)
    assert f"{kind}-1.key is another key" in found[0]
    assert await known(store) == open_keys(first, create=False).fingerprints()
    await join_keys(store, first)


async def test_what_else_the_store_remembers_is_no_key(store: Store, tmp_path: Path) -> None:
    for name in ("store-id", "moved-from", "pepper", "pepper-x", "pepper-01"):
        await store.commit(Statement("INSERT INTO node_facts VALUES (:name, 'x')", {"name": name}))
    assert await known(store) == {}
    assert await known(store) | (await join_keys(store, tmp_path / "keys")).fingerprints() == await known(store)


async def test_of_two_nodes_on_an_empty_database_one_serves_with_its_keys(tmp_path: Path, postgresql_url: str) -> None:
    found: list[Keys | KeysRefused] = []

    async def node(name: str) -> None:
        section = {"data_dir": str(tmp_path / name), "name": name}
        configuration = structure({"node": section, "store": {"url": postgresql_url}})
        async with open_runtime() as runtime, open_engine(runtime, configuration) as opened:
            try:
                found.append(await join_keys(opened, configuration.keys_dir))
            except KeysRefused as refused:
                found.append(refused)

    async with trio.open_nursery() as nursery:
        for name in ("node-1", "node-2", "node-3"):
            nursery.start_soon(node, name)
    assert len([each for each in found if isinstance(each, Keys)]) == 1
    assert all("copy it from another node" in str(each) for each in found if isinstance(each, KeysRefused))
