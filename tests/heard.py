"""What a node asks of its store: every statement of its life, heard at the engine while the node's own tests run it."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import httpx
import pytest
import trio
from trio.testing import MockClock

import gateway
from gateway.actors.findings import Findings, Look
from gateway.actors.idempotency import Show
from gateway.actors.leases import ALONE, Held, Leases, alone
from gateway.actors.ledger import last_block
from gateway.actors.probe_history import WRITE_EVERY_S, ProbeHistory
from gateway.actors.probe_thinning import thin
from gateway.actors.quota import GiveBack, Policy, Spend, quota
from gateway.actors.retention import sweep
from gateway.actors.runtime import open_runtime
from gateway.actors.settlement import Verdict, Verification
from gateway.actors.store import Row, Statement, Value, open_sqlite
from gateway.actors.store.sqlite import SqliteStore, inline
from gateway.actors.store_time import confirmed
from gateway.config import structure
from gateway.errors import ExecutorFailed
from gateway.http.operator_view import FILTERS
from gateway.node import open_node
from gateway.registry.qualification import Evidence, Finding, Observation, State
from gateway.shared_terms import join_terms
from tests.actors.operations import (
    test_covering,
    test_in_hand,
    test_keeping,
    test_recovery,
    test_reorg,
    test_resolution,
    test_several_nodes,
    test_verifying,
)
from tests.actors.operations.scene import START_MS, Scene
from tests.http.shop import LIMITS, open_shop

PACKAGE = Path(gateway.__file__).parent
STORE_METHODS = frozenset({"commit", "fetch", "fetch_many", "look_up", "look_up_at_once"})
DAY_MS = 24 * 3600 * 1000

Queries = Sequence[tuple[str, Mapping[str, Value]]]


@attrs.frozen
class Asked:
    """How a statement was asked first: its parameters, and whether it was a step or a look-up on a call's road."""

    parameters: Mapping[str, Value]
    on_the_road: bool


@attrs.define(eq=False)
class Heard:
    """What the package asked of any SQLite engine: its statements, by their text in one line.

    What tests ask to see what became of their calls is passed over.
    """

    asked: dict[str, Asked] = attrs.field(factory=dict)

    def listen(self, patch: pytest.MonkeyPatch, *, shared: bool) -> None:
        """Hear every engine from now on; with `shared` they say that other nodes may write to them."""
        commit, fetch_many, look_up = SqliteStore.commit, SqliteStore.fetch_many, SqliteStore.look_up
        look_up_at_once = SqliteStore.look_up_at_once

        async def commit_heard(store: SqliteStore, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
            self._hear([(each.sql, each.parameters) for each in statements], on_the_road=True)
            return await commit(store, *statements, relaxed=relaxed)

        async def fetch_heard(store: SqliteStore, queries: Queries) -> list[list[Row]]:
            self._hear(queries, on_the_road=False)
            return await fetch_many(store, queries)

        async def look_up_heard(store: SqliteStore, queries: Queries) -> list[list[Row]]:
            self._hear(queries, on_the_road=True)
            return await look_up(store, queries)

        def look_up_at_once_heard(store: SqliteStore, queries: Queries) -> list[list[Row]]:
            self._hear(queries, on_the_road=True)
            return look_up_at_once(store, queries)

        patch.setattr(SqliteStore, "commit", commit_heard)
        patch.setattr(SqliteStore, "fetch_many", fetch_heard)
        patch.setattr(SqliteStore, "look_up", look_up_heard)
        patch.setattr(SqliteStore, "look_up_at_once", look_up_at_once_heard)
        if shared:
            patch.setattr(SqliteStore, "shared", property(lambda _: True))

    def _hear(self, queries: Queries, *, on_the_road: bool) -> None:
        if not _asked_by_the_package():
            return
        for sql, parameters in queries:
            self.asked.setdefault(one_line(sql), Asked(parameters, on_the_road))


def _asked_by_the_package() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name.removesuffix("_heard") in STORE_METHODS:
        frame = frame.f_back
    if frame is None:
        return False
    asker = Path(frame.f_code.co_filename)
    return asker.is_relative_to(PACKAGE) or asker == Path(__file__)


def one_line(sql: str) -> str:
    """Return a statement with its white space as heard statements have it."""
    return " ".join(sql.split())


def hear(directory: Path) -> Mapping[str, Asked]:
    """Run all that a node does, alone and as one of several over a store; return what it asked of its store."""
    heard, number = Heard(), itertools.count()
    for shared, parts in ((False, (*PARTS, *STORIES)), (True, PARTS)):
        with pytest.MonkeyPatch.context() as patch:
            heard.listen(patch, shared=shared)
            for part in parts:
                place = directory / str(next(number))
                place.mkdir()
                part(place)
    return heard.asked


# -- what a node does --------------------------------------------------------------------------------------------------


def sell(directory: Path) -> None:
    """Quotes, a sale, replays, refusals and failures, a failed call taken on again, sweeps: without a socket."""

    async def live() -> None:
        async with open_shop(directory, limits=LIMITS | {"free_search": 100}) as shop:
            bought = await shop.buy(key="a key of a paid call")
            names = shop.node.naming.names("a key of a paid call", "192.0.2.1")
            assert (await shop.post(key="a key of a paid call")).status == 200
            assert (await shop.post("search.free", key="a key of a free call")).status == 200
            shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")
            assert (await shop.buy(key="a key of a refused call")).status == 402
            shop.bank.verification = Verification(Verdict.VALID)
            shop.search.failure = ExecutorFailed()
            assert (await shop.buy(key="a key of a failed call")).status == 502
            shop.search.failure, shop.search.releases = None, True
            assert (await shop.buy(key="a key of a failed call")).status == 200
            await shop.node.idempotency.ask(Show(bought.json["operationId"], names), within=5)
            assert await last_block(shop.store) is None
            await sweep(shop.store, confirmed(shop.clock() + 8 * DAY_MS))
            await sweep(shop.store, confirmed(shop.clock() + 401 * DAY_MS))

    trio.run(live)


def serve(directory: Path) -> None:
    """A whole node with its operator's pages: what probes, leases, metrics and lists ask."""

    async def live() -> None:
        node = {"listen": ["127.0.0.1:0"], "operator_listen": "127.0.0.1:0", "data_dir": str(directory)}
        tree = {"node": node, "ai": {"embedded": False}, "sandbox": {"enabled": False}}
        paid = {"pay_to": "0x" + "ab" * 20, "facilitator_url": "http://127.0.0.1:1", "rpc_urls": ["http://127.0.0.1:1"]}
        async with open_node(structure(tree), operator=True) as running:
            await join_terms(running.store, structure(tree | {"payment": paid}))
            token = (directory / "operator.token").read_text().strip()
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:
                body = {"query": "idempotency", "synthesize": False}
                key = {"Idempotency-Key": "a key of a free call"}
                answer = await client.post(f"{running.urls[0]}/v1/search/free", json=body, headers=key)
                assert answer.status_code == 200, answer.text
                for path in ("", "metrics", "metrics", "operations", f"operations/{answer.json()['operationId']}"):
                    assert (await client.get(f"{running.operator}/{path}")).status_code == 200, path
                (proof,) = (await client.get(f"{running.operator}/models")).json()["routes"]
                for known in (f"route={proof['route']}", f"qualificationId={proof['qualificationId']}"):
                    assert (await client.get(f"{running.operator}/models/history?{known}")).status_code == 200
                for state in FILTERS:
                    assert (await client.get(f"{running.operator}/operations?state={state}")).status_code == 200

    trio.run(live)


def share(directory: Path) -> None:
    """Counting calls where several nodes do, for long enough to sweep; a proof under a lease."""

    async def live() -> None:
        policies = {name: Policy(name, 50) for name in ("free_search", "unpaid_quotes")}
        async with open_runtime() as runtime, open_sqlite(runtime, directory / "node.db", run=inline) as store:
            count = partial(quota, policies=policies, store=store, clock_ms=lambda: START_MS)
            ref, leases = await runtime.start("quota", count), Leases(store)
            await runtime.start("leases", leases.watch)
            for name in policies:
                await ref.ask(Spend(name, "a caller"), within=5)
                ref.tell(GiveBack(name, "a caller"))
            await leases.hold("probe", partial(prove, store))
            await trio.sleep(40)

    async def prove(store: SqliteStore, held: Held) -> None:
        findings = Findings(store, alone)
        look = Look(Finding(ok=True, reason=None, basis="probe", degraded=False), trio.current_time(), 5, "qual_1")
        await findings.write(held, "search/index", "settings", look)
        await findings.read(60)

    trio.run(live, clock=MockClock(autojump_threshold=0))


def remember(directory: Path) -> None:
    """What a node writes down of its routes, and what becomes of it in a hundred days."""

    async def live() -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, directory / "node.db", run=inline) as store:
            for day in (1, 100):
                history = ProbeHistory(store, node="node-1", clock_ms=lambda day=day: day * DAY_MS)  # type: ignore[misc]
                await runtime.start(f"probe-history {day}", history.watch)
                history.note(Evidence("ai/one", State.AVAILABLE, "q_1", None), Observation(ok=True, probe=True, ms=9))
                await trio.sleep(WRITE_EVERY_S + 1)
                await thin(store, (day + 2) * DAY_MS, ALONE)

    trio.run(live, clock=MockClock(autojump_threshold=0))


def story(test: Callable[..., Awaitable[None]], **arguments: Any) -> Callable[[Path], None]:
    """Return a part of a node's life that one of its own tests tells."""

    def live(directory: Path) -> None:
        scene, clock = Scene(directory), MockClock(autojump_threshold=0)
        trio.run(partial(test, scene, clock, **arguments), clock=clock)

    return live


PARTS: Sequence[Callable[[Path], None]] = (sell, serve, share, remember)
"""What a node does otherwise where others share its store."""

STORIES: Sequence[Callable[[Path], None]] = (
    story(test_recovery.test_a_settlement_that_was_cut_off_is_decided_by_the_chain, how="lost"),
    story(test_recovery.test_a_free_execution_that_was_cut_off_is_run_again),
    story(test_recovery.test_a_claim_of_unknown_outcome_is_found_out, how="lost"),
    story(test_recovery.test_a_run_that_must_not_be_repeated_is_burned_without_asking_anybody),
    story(test_in_hand.test_a_step_is_written_once_whatever_the_store_answers, faults=["lost"]),
    story(test_several_nodes.test_a_payers_exposure_is_capped_over_all_nodes_however_they_race),
    story(test_several_nodes.test_what_a_dead_node_left_is_taken_over_once_its_lease_has_run_out, settling=True),
    story(test_covering.test_60_authorizations_over_one_balance_on_two_nodes_run_at_most_once),
    story(test_verifying.test_a_payment_that_was_made_before_its_quote_buys_nothing),
    story(test_keeping.test_a_payer_whose_payment_failed_waits_and_is_served_again_after_that),
    story(test_keeping.test_a_settled_payment_whose_receipt_cannot_be_kept_is_receipted_later),
    story(test_reorg.test_a_payment_that_a_reorganisation_moved_gets_a_receipt_of_its_new_transaction),
    story(test_reorg.test_a_payment_that_is_lost_for_good_is_told_to_the_operator_and_the_result_stands, how="expired"),
    story(test_resolution.test_an_operation_that_was_paid_is_receipted_and_its_key_gets_the_result),
    story(test_resolution.test_an_operation_that_was_not_paid_ends_and_its_key_can_buy_the_result),
)


# -- what the package says ---------------------------------------------------------------------------------------------


@attrs.frozen
class Written:
    """A statement as the source has it: `pattern` finds it among those that were heard."""

    place: str
    pattern: re.Pattern[str]


_BEGINS = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH) ")


def written() -> Iterator[Written]:
    """Every SQL statement in the source of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) not in inner and _BEGINS.match(_text(node)):
                pattern = re.compile(".+".join(re.escape(part) for part in _parts(node)))
                yield Written(f"{path.relative_to(PACKAGE)}:{node.lineno}", pattern)  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    return "?".join(_parts(node))


def _parts(node: ast.AST) -> list[str]:
    """The constant parts of a string, with white space as the heard statements have it."""
    match node:
        case ast.Constant(value=str(text)):
            return [one_line(text)]
        case ast.JoinedStr(values=values):
            whole = "".join(str(each.value) if isinstance(each, ast.Constant) else "\0" for each in values)
            return one_line(whole).split("\0")
        case _:
            return []
