"""A node's money side on a real store: real operations, idempotency and ledger, a scripted chain and executor."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import orjson
import trio

from gateway.actors.idempotency import LookUp, Open, idempotency
from gateway.actors.idempotency import Message as IdempotencyMessage
from gateway.actors.leases import Hold, alone
from gateway.actors.ledger import audit_store, seal_next
from gateway.actors.operations import (
    Earlier,
    Ended,
    Join,
    Limits,
    Order,
    Submit,
    Surroundings,
    operations,
)
from gateway.actors.operations.actor import Message as OperationsMessage
from gateway.actors.payment import Payment
from gateway.actors.runtime import Event, Inbox, Letter, Ref, Runtime, open_runtime
from gateway.actors.settlement import (
    BlockTime,
    ChainUnavailable,
    Funds,
    HasCode,
    Look,
    ReadBalance,
    ReadFunds,
    Settle,
    Sighting,
    Standing,
    StillStands,
    Submission,
    Verdict,
    Verification,
    Verify,
    Wanted,
)
from gateway.actors.settlement import Message as SettlementMessage
from gateway.actors.store import Membership, Row, Statement, StoreHealth, StoreUncertain, Value, open_sqlite
from gateway.actors.store.sqlite import SqliteStore, inline
from gateway.errors import ExecutorFailed, GatewayError, StoreUnavailable
from gateway.registry.canonical import request_hash
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from gateway.registry.payment.asset import Asset
from gateway.registry.receipts import Signer, verify_receipt
from gateway.registry.sealing import Naming, NodeSeal

START_MS = 1_795_816_000_000
PRICE = 6000
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
OTHER_PAYER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PAY_TO = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
ASSET = Asset("eip155:8453", 8453, "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913", "USD Coin", "2", 6)
NAMING = Naming({1: b"p" * 32})
SIGNER = Signer.from_keys({1: b"r" * 32})
SEAL = NodeSeal({1: b"n" * 32})
QUERY = {"query": "what is a tide"}

T = TypeVar("T")
Key = tuple[int, str, str, str]


def operation(operation_id: str = "search.paid", **changes: Any) -> Operation:
    paid = operation_id != "search.free"
    entry = Operation(
        id=operation_id,
        path="/v1/search",
        title="Search",
        summary="Search.",
        schema={},
        example=QUERY,
        request=dict,
        paid=paid,
        price=lambda _: PRICE if paid else 0,
        key_required=True,
        body_cap=65536,
        deadline_s=12.0,
        quota="paid",
        family="search",
        failure=ExecutorFailed,
    )
    return attrs.evolve(entry, **changes)


PAID, FREE = operation(), operation("search.free")
ONCE = operation("sandbox.execute")
TABLE: Mapping[str, Operation] = {each.id: each for each in (PAID, FREE, ONCE)}


def structure(_: Operation, body: Mapping[str, Any]) -> Any:
    return dict(body)


def output(text: str = "tides") -> dict[str, Any]:
    route = {"routeId": "search/index", "qualificationId": "q_1", "servingAdapters": ["index"]}
    return {"route": route, "results": [text]}


# -- the chain and its facilitator -------------------------------------------------------------------------------------


@attrs.define
class Chain:
    """A chain and a facilitator that keep count of what they are asked, and do as they are told.

    `verdicts`, `settles` and `looks` are what the next calls do; when they run out, or say `ok` or None, all goes well.
    A look is where a payment is said to stand, or `away`.  A settle is one of
    `ok`, `lost` (mined, the answer is lost), `dropped` (nothing mined, the answer is lost), `unsent`, `refused`,
    `hang` (nothing mined, no answer), `slow` (mined at once, answered after a minute) and `late` (no answer, and mined
    after a minute if it is valid then).
    `minted` is what a payer (in lower case) had at first, more than it can spend where it is not named; nobody reads
    a balance while it is `unreadable`.
    """

    now: Callable[[], float]
    head: int = 100
    confirmations: int = 1
    mining_s: float = 0.2
    verdicts: deque[Verification | None] = attrs.field(factory=deque)
    settles: deque[str] = attrs.field(factory=deque)
    looks: deque[Standing | str] = attrs.field(factory=deque)
    verified: list[Payment] = attrs.field(factory=list)
    submitted: list[Payment] = attrs.field(factory=list)
    looked: list[Look] = attrs.field(factory=list)
    watched: list[StillStands] = attrs.field(factory=list)
    mined: dict[Key, tuple[str, int, str]] = attrs.field(factory=dict)
    late: list[tuple[float, Payment]] = attrs.field(factory=list)
    minted: dict[str, int] = attrs.field(factory=dict)
    unreadable: bool = False
    balances_read: list[ReadBalance | ReadFunds] = attrs.field(factory=list)
    cancelled: set[Key] = attrs.field(factory=set)
    diverted: set[Key] = attrs.field(factory=set)
    times: dict[int, int] = attrs.field(factory=dict)
    with_code: set[str] = attrs.field(factory=set)
    transfers: Counter[Key] = attrs.field(factory=Counter)
    gate: trio.Event | None = None
    verifying: trio.Event = attrs.field(factory=trio.Event)
    settling: trio.Event = attrs.field(factory=trio.Event)
    fork: int = 0

    async def actor(self, inbox: Inbox[SettlementMessage]) -> None:
        async with trio.open_nursery() as nursery:
            inbox.ready()
            async for letter in inbox:
                nursery.start_soon(self.serve, letter)
            nursery.cancel_scope.cancel()

    async def serve(self, letter: Letter[SettlementMessage]) -> None:
        message = letter.message
        await trio.lowlevel.checkpoint()
        try:
            match message:
                case Verify(payment):
                    letter.answer(message, await self.verify(payment))
                case Settle(payment):
                    letter.answer(message, await self.settle(payment))
                case Look():
                    letter.answer(message, self.look(message))
                case BlockTime(number):
                    self.fault()
                    letter.answer(message, self.times.get(number, int(self.now())))
                case HasCode(address):
                    self.fault()
                    letter.answer(message, address in self.with_code)
                case ReadBalance(_, payer):
                    letter.answer(message, self.read_balance(message, payer))
                case ReadFunds(_, payer, nonces):
                    balance = self.read_balance(message, payer)
                    used = {key[3] for key in self.mined.keys() | self.cancelled}
                    letter.answer(message, Funds(balance, frozenset(nonces) & used))
                case StillStands(transaction, block_hash):
                    self.watched.append(message)
                    self.fault()
                    letter.answer(message, any(each[::2] == (transaction, block_hash) for each in self.mined.values()))
                case Wanted():
                    pass
        except ChainUnavailable as reason:
            letter.refuse(reason)

    async def verify(self, payment: Payment) -> Verification:
        self.verified.append(payment)
        self.verifying.set()
        if self.gate is not None:
            await self.gate.wait()
        told = self.verdicts.popleft() if self.verdicts else None
        if told is not None:
            return told
        if self.standing(payment) is Standing.UNUSED:
            return Verification(Verdict.VALID)
        return Verification(Verdict.INVALID, "invalid_transaction_state")

    async def settle(self, payment: Payment) -> Submission:
        self.submitted.append(payment)
        self.settling.set()
        how = self.settles.popleft() if self.settles else "ok"
        if how == "hang":
            await trio.sleep_forever()
        if how == "unsent":
            return Submission(None, "unreachable", sent=False)
        await trio.sleep(self.mining_s)
        if how == "late":
            self.late.append((self.now() + 60, payment))
        if how == "ok" and self.balance(payment.payer) < payment.amount:
            return Submission(None, "invalid_exact_evm_insufficient_balance", sent=True, refused=True)
        if how in {"ok", "lost", "slow"} and self.standing(payment) is Standing.UNUSED:
            transaction = self.mine(payment)
            if how == "slow":
                await trio.sleep(60)
            if how != "lost":
                return Submission(transaction, "success", sent=True)
        if how in {"lost", "dropped", "late"}:
            return Submission(None, "timeout", sent=True)
        return Submission(None, "transaction_failed", sent=True, refused=True)

    def balance(self, payer: str) -> int:
        spent = sum(PRICE for key in self.mined if key[2] == payer.lower())
        return self.minted.get(payer.lower(), 10**12) - spent

    def read_balance(self, message: ReadBalance | ReadFunds, payer: str) -> int:
        self.balances_read.append(message)
        if self.unreadable:
            raise ChainUnavailable("rpc_timeout")
        return self.balance(payer)

    def mine(self, payment: Payment) -> str:
        """Put the transfer into a block, whoever submitted it."""
        assert payment.key not in self.mined
        self.head += 1
        transaction = f"0x{len(self.transfers) + sum(self.transfers.values()):062x}{self.fork:02x}"
        self.mined[payment.key] = transaction, self.head, f"0x{self.head:062x}{self.fork:02x}"
        self.transfers[payment.key] += 1
        return transaction

    def reorganise(self, *payments: Payment) -> None:
        """Take transfers away again."""
        self.fork += 1
        for payment in payments:
            del self.mined[payment.key]
            self.transfers[payment.key] -= 1

    def standing(self, payment: Payment) -> Standing:
        if payment.key in self.cancelled:
            return Standing.CANCELLED
        if payment.key in self.diverted:
            return Standing.DIVERTED
        if payment.key not in self.mined and any(
            each.key == payment.key and when <= self.now() and when < each.valid_before for when, each in self.late
        ):
            self.mine(payment)
        if payment.key in self.mined:
            deep = self.head - self.mined[payment.key][1] + 1 >= self.confirmations
            return Standing.PAID if deep else Standing.SHALLOW
        return Standing.EXPIRED if self.now() >= payment.valid_before else Standing.UNUSED

    def fault(self) -> None:
        if self.looks and self.looks[0] == "away":
            self.looks.popleft()
            raise ChainUnavailable("rpc_timeout")

    def look(self, message: Look) -> Sighting:
        self.looked.append(message)
        self.fault()
        told = self.looks.popleft() if self.looks else None
        standing = told if isinstance(told, Standing) else self.standing(message.payment)
        if standing in {Standing.PAID, Standing.SHALLOW}:
            return Sighting(standing, self.head, *self.mined[message.payment.key])
        return Sighting(standing, self.head)


@attrs.define
class Executor:
    """A family that does as it is told: a result, a failure to raise, or seconds to take first.

    What must run once at most is let go of before; `before` are seconds to take even before that.
    """

    before: deque[float] = attrs.field(factory=deque)
    plan: deque[Served | Exception | float] = attrs.field(factory=deque)
    runs: list[Work] = attrs.field(factory=list)
    running: trio.Event = attrs.field(factory=trio.Event)

    def admit(self, operation: str, request: Any) -> None:
        return

    def budget(self, operation: str, request: Any) -> str | None:
        return None

    async def execute(self, work: Work) -> Served:
        if self.before:
            await trio.sleep(self.before.popleft())
        if work.operation == ONCE.id:
            await work.release()
        self.runs.append(work)
        self.running.set()
        await trio.lowlevel.checkpoint()
        while self.plan:
            step = self.plan.popleft()
            if isinstance(step, Served):
                return step
            if isinstance(step, Exception):
                raise step
            await trio.sleep(step)
        return Served(output(), {"searches": 1})


@attrs.define
class FaultyStore:
    """The real store with faults in front of it.

    `commits` is what the next commits do: `ok`, `away` (never happened), `lost` (uncertain, and stored), `unsure`
    (uncertain, and not stored) or `slow` (stored at once, answered after some seconds).
    `relaxed` notes of every commit whether it was.
    Every commit fails that `full` returns True for.  `late` tells of a query by how many seconds its answer is late.
    """

    real: SqliteStore
    commits: deque[str] = attrs.field(factory=deque)
    full: Callable[[Sequence[Statement]], bool] = lambda _: False
    late: Callable[[str], float] = lambda _: 0.0
    node: str = "node-1"
    shared: bool = False
    relaxed: list[bool] = attrs.field(factory=list)

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        await trio.lowlevel.checkpoint()
        self.relaxed.append(relaxed)
        if self.full(statements):
            raise StoreUnavailable("The disk of the store is full; nothing was stored.")
        how = self.commits.popleft() if self.commits else "ok"
        if how == "away":
            raise StoreUnavailable("nothing was stored")
        if how == "unsure":
            raise StoreUncertain("its outcome is unknown")
        done = await self.real.commit(*statements, relaxed=relaxed)
        if how == "slow":
            await trio.sleep(7)
        if how == "lost":
            raise StoreUncertain("its outcome is unknown")
        return done

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        (found,) = await self.fetch_many([(sql, parameters)])
        return found

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.fetch_many(queries)

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        found = await self.real.fetch_many(queries)
        late = max([self.late(sql) for sql, _ in queries], default=0.0)
        if late:
            await trio.sleep(late)
        return found

    @property
    def health(self) -> StoreHealth:
        return self.real.health

    async def probe(self) -> StoreHealth:
        return await self.real.probe()

    @property
    def membership(self) -> Membership:
        return Membership(self.node, 1)

    def tell(self, *topics: str) -> None:
        self.real.tell(*topics)

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        return self.real.hear(topic)


# -- callers -----------------------------------------------------------------------------------------------------------


_NONCES = itertools.count(1)


def payment(*, payer: str = PAYER, valid_for_s: int = 160, **changes: Any) -> Payment:
    """A fresh payment of the price."""
    number = next(_NONCES)
    made = Payment(
        protocol="x402",
        chain_id=ASSET.chain_id,
        network=ASSET.network,
        asset=ASSET.address,
        payer=payer,
        pay_to=PAY_TO,
        amount=PRICE,
        nonce=f"0x{number:064x}",
        valid_before=START_MS // 1000 + int(trio.current_time()) + valid_for_s,
        quote_id=f"qt_{number}",
        price_version="2026-07-25.3",
        challenge_id=None,
        body={"paymentPayload": {"nonce": number}},
    )
    return attrs.evolve(made, **changes)


def order(
    key: str = "a-key-that-is-long-enough",
    paid_by: Payment | None = None,
    *,
    what: Operation | None = None,
    body: Mapping[str, Any] = QUERY,
    names: Sequence[str] = (),
    network: str = "192.0.2.1",
    earlier: Earlier | None = None,
    fresh: bool = False,
) -> Order:
    chosen = what or (FREE if paid_by is None else PAID)
    callers = [NAMING.network_names(network)]
    if paid_by is not None:
        callers.append(NAMING.payer_names(paid_by.payer))
    return Order(
        operation=chosen,
        body=body,
        request=structure(chosen, body),
        request_hash=request_hash(chosen.id, body),
        names=tuple(NAMING.names(each, network) for each in (key, *names)),
        callers=tuple(callers),
        payment=paid_by,
        earlier=earlier,
        fresh=fresh,
    )


@attrs.define(eq=False)
class Node:
    """A running node's money side."""

    scene: Scene
    runtime: Runtime
    store: FaultyStore
    around: Surroundings
    operations: Ref[OperationsMessage]
    idempotency: Ref[IdempotencyMessage]

    async def look_up(self, made: Order) -> Open | Ended | Earlier | None:
        """Ask what the order's names stand for, as the pipeline does."""
        names = made.callers
        known = await self.idempotency.ask(
            LookUp(made.names, made.request_hash, network=names[0], payer=names[1] if names[1:] else ()), within=60
        )
        return known.operation

    async def call(self, made: Order, *, wait_s: float = 25.0, within: float = 600.0) -> Ended:
        """Go the pipeline's road: replay, join, or submit as a first or the next attempt."""
        known = await self.look_up(made)
        if isinstance(known, Ended):
            return known
        if isinstance(known, Open):
            return await self.operations.ask(Join(known.operation_id, wait_s), within=within)
        return await self.submit(attrs.evolve(made, earlier=known), wait_s=wait_s, within=within)

    async def submit(self, made: Order, *, wait_s: float = 25.0, within: float = 600.0) -> Ended:
        return await self.operations.ask(Submit(made, wait_s), within=within)

    async def row(self, operation_id: str, *columns: str) -> Any:
        found = await self.store.fetch(
            f"SELECT {', '.join(columns)} FROM operations WHERE operation_id = :id", {"id": operation_id}
        )
        return found[0] if len(columns) > 1 else found[0][0]

    async def only(self, *columns: str) -> Any:
        """Columns of the one operation that there is."""
        found = await self.store.fetch(f"SELECT {', '.join(columns)} FROM operations")
        assert len(found) == 1
        return found[0] if len(columns) > 1 else found[0][0]

    async def count(self, table: str = "operations") -> int:
        ((count,),) = await self.store.fetch(f"SELECT COUNT(*) FROM {table}")
        assert isinstance(count, int)
        return count

    async def history(self, operation_id: str) -> list[str]:
        found = await self.store.fetch(
            "SELECT state FROM operation_events WHERE operation_id = :id ORDER BY step", {"id": operation_id}
        )
        return [str(state) for (state,) in found]


async def until(fact: Callable[[], Any], *, within_s: float = 1200.0) -> None:
    """Wait until a fact is true; fails after `within_s` seconds of the test's clock."""
    with trio.fail_after(within_s):
        while True:
            value = fact()
            if hasattr(value, "__await__"):
                value = await value
            if value:
                return
            await trio.sleep(0.05)


async def outcome_of(asked: Callable[[], Any]) -> Ended | GatewayError:
    """What a call comes to, a failure as a value."""
    try:
        ended = await asked()
    except GatewayError as failure:
        return failure
    assert isinstance(ended, Ended)
    return ended


async def all_of(*asked: Callable[[], Any], apart_s: float | None = None) -> list[Ended | GatewayError]:
    """What calls come to that are made at the same time, or each so many seconds after the one before."""
    results: list[Any] = [None] * len(asked)

    async def one(index: int, call: Callable[[], Any]) -> None:
        results[index] = await outcome_of(call)

    async with trio.open_nursery() as nursery:
        for index, call in enumerate(asked):
            nursery.start_soon(one, index, call)
            if apart_s is not None:
                await trio.sleep(apart_s)
    return results


@attrs.define(eq=False)
class Scene:
    """A node's store, its chain and its executor; they outlive each node that is opened on them."""

    folder: Path
    chain: Chain = attrs.field(init=False)
    executor: Executor = attrs.field(factory=Executor)
    crashes: list[Event] = attrs.field(factory=list)
    """Of actors."""

    def __attrs_post_init__(self) -> None:
        self.chain = Chain(lambda: self.clock_ms() / 1000)

    @property
    def path(self) -> Path:
        return self.folder / "node.db"

    def clock_ms(self) -> int:
        return START_MS + int(trio.current_time() * 1000)

    def observe(self, event: Event) -> None:
        if event.cause is not None:
            self.crashes.append(event)

    @asynccontextmanager
    async def node(
        self,
        *,
        limits: Limits | None = None,
        sells: bool = True,
        grace: float = 30.0,
        table: Mapping[str, Operation] = TABLE,
        structure: Callable[[Operation, Mapping[str, Any]], Any] = structure,
        store_faults: Sequence[str] = (),
        shared: bool = False,
        hold: Hold = alone,
        **changes: Any,
    ) -> AsyncIterator[Node]:
        """Run a node on this store.  With `grace=0` leaving the block is a crash: nothing comes to its end."""
        async with (
            open_runtime(observe=self.observe, grace=grace) as runtime,
            open_sqlite(runtime, self.path, run=inline) as real,
        ):
            store = FaultyStore(real, shared=shared)
            store.commits.extend(store_faults)
            yield await self._start(runtime, store, limits, sells, table, structure, hold, changes)

    @asynccontextmanager
    async def another(
        self,
        first: Node,
        *,
        name: str = "node-2",
        limits: Limits | None = None,
        grace: float = 30.0,
        table: Mapping[str, Operation] = TABLE,
        hold: Hold = alone,
        **changes: Any,
    ) -> AsyncIterator[Node]:
        """Run a second node on the store of a first one that shares it; its lease ends with the block."""
        await self.lease(first, name, alive=True)
        store = FaultyStore(first.store.real, node=name, shared=True)
        async with open_runtime(observe=self.observe, grace=grace) as runtime:
            yield await self._start(runtime, store, limits, True, table, structure, hold, {"node": name, **changes})
        await self.lease(first, name, alive=False)

    async def lease(self, node: Node, name: str, *, alive: bool) -> None:
        """Let a node of this name live, or its lease run out."""
        await node.store.real.commit(
            Statement(
                """
                INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release)
                VALUES (:node, 1, :until, 0, 0, '')
                ON CONFLICT (node) DO UPDATE SET lease_until = excluded.lease_until
                """,
                {"node": name, "until": 2**62 if alive else 0},
            )
        )

    async def _start(
        self,
        runtime: Runtime,
        store: FaultyStore,
        limits: Limits | None,
        sells: bool,
        table: Mapping[str, Operation],
        structure: Callable[[Operation, Mapping[str, Any]], Any],
        hold: Hold,
        changes: Mapping[str, Any],
    ) -> Node:
        names = await runtime.start("idempotency", partial(idempotency, store=store.real), capacity=1024)
        settlement = await runtime.start("settlement", self.chain.actor, capacity=1024) if sells else None
        around = Surroundings(
            store=store,
            settlement=settlement,
            families={"search": self.executor},
            seal=SEAL,
            signer=SIGNER,
            asset=ASSET,
            node="node-1",
            clock_ms=self.clock_ms,
            draining=trio.Event(),
            posted=lambda: None,
            settle_wait_s=15.0,
            payer_hold_s=900.0,
            verify_timeout_s=10.0,
            settle_timeout_s=20.0,
        )
        around = attrs.evolve(around, **changes)
        ref = await runtime.start(
            "operations",
            partial(
                operations,
                around=around,
                table=table,
                structure=structure,
                limits=limits or Limits(),
                head=lambda: self.chain.head,
                hold=hold,
            ),
            capacity=1024,
        )
        return Node(self, runtime, store, around, ref, names)

    def crashing(self, **options: Any) -> Any:
        """A node that ends as if it was killed."""
        return self.node(grace=0, **options)

    async def check(self) -> None:
        """What holds of every store at every time, whatever happened."""
        if not self.path.exists():
            return
        async with open_runtime(grace=0) as runtime, open_sqlite(runtime, self.path, run=inline) as store:
            await self._check_ledger(store)
            await self._check_operations(store)
            await self._check_histories(store)
        assert all(count <= 1 for count in self.chain.transfers.values()), "an authorization has paid twice"

    async def _check_ledger(self, store: SqliteStore) -> None:
        while await seal_next(store, SIGNER, self.clock_ms()):
            pass
        found = await audit_store(store)
        assert found.faults == ()
        assert sum(found.balances.values()) == 0
        ((held,),) = await store.fetch(
            "SELECT COALESCE(SUM(amount), 0) FROM operations WHERE funding = 'paid'"
            " AND ((ended_at IS NULL AND state = 'executed')"
            "   OR (state = 'needs_operator' AND executed_at IS NOT NULL))"
        )
        ((earned,),) = await store.fetch(
            "SELECT COALESCE(SUM(amount), 0) FROM operations WHERE state = 'receipted' AND settlement <> 'not_settled'"
        )
        assert found.balances.get("hold", 0) == held
        assert found.balances.get("revenue", 0) == earned

    async def _check_operations(self, store: SqliteStore) -> None:
        rows = await store.fetch(
            "SELECT state, funding, settlement, transaction_hash, nonce, payer, receipt, ended_at, node_wrap"
            " FROM operations"
        )
        for state, funding, settlement, transaction, nonce, payer, receipt, ended_at, node_wrap in rows:
            if state == "receipted":
                assert receipt is not None
                verify_receipt(orjson.loads(str(receipt)), SIGNER.key_set)
            if state in {"receipted", "failed"}:
                assert ended_at is not None
                assert node_wrap is None
            if (state, funding, settlement) == ("receipted", "paid", "settled"):
                key = (ASSET.chain_id, ASSET.address.lower(), str(payer).lower(), str(nonce).lower())
                assert self.chain.mined[key][0] == transaction, "a receipt names what the chain does not show"
        doubles = await store.fetch(
            "SELECT nonce FROM operations WHERE state = 'receipted' AND funding = 'paid'"
            " GROUP BY nonce HAVING COUNT(*) > 1"
        )
        assert doubles == []

    async def _check_histories(self, store: SqliteStore) -> None:
        kept: dict[Value, bool] = {}
        for operation_id, state, note in await store.fetch(
            "SELECT operation_id, state, note FROM operation_events ORDER BY operation_id, step"
        ):
            if state == "claimed" and not str(note).startswith("attempt "):
                assert not kept.get(operation_id), "what was kept was begun anew"
            kept[operation_id] = state == "executed" or (state == "settling" and kept.get(operation_id, False))


async def state_is(node: Node, *states: str) -> bool:
    """Whether the one operation that there is, is in one of these states."""
    return bool(await node.only("state") in states)


async def crash_when(scene: Scene, asked: Any, happened: Callable[[Node], Any], **options: Any) -> None:
    """Run a node until something has happened, and end it as if it was killed."""
    async with scene.crashing(**options) as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, asked))
        await until(partial(happened, node))
        nursery.cancel_scope.cancel()
    scene.chain.gate = None
