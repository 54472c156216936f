"""The one road of every POST operation, in the order of spec/readings "Order of checks"; no route re-orders it.

1 transport, 2 probe rule, 3 schema, key and credential (all in `asked`), 4 requestHash and key, 5 free quota,
6 availability, 7 quote or payment.  Everything up to the claim writes nothing but quota counters.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import attrs
import structlog
import trio

from gateway import errors
from gateway.actors import idempotency as keys
from gateway.actors import operations as ops
from gateway.actors import quota as quotas
from gateway.actors.clock import CLOCK_SKEW
from gateway.actors.operations.actor import Message as OperationsMessage
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorDown, ActorError, Overloaded, Ref
from gateway.actors.settlement import Message as SettlementMessage
from gateway.actors.settlement import SettlementPath
from gateway.actors.store import UNAVAILABLE
from gateway.errors import GatewayError
from gateway.http.answer import Outgoing, failed_settlement, outgoing
from gateway.http.asked import Incoming, Reader
from gateway.http.call import KEY_HEADER, Call
from gateway.http.challenge import Quoting, own
from gateway.http.counting import RETRY_AFTER_S, Attempt, give_back, spend
from gateway.http.lanes import Lanes, Turn
from gateway.http.means import Means
from gateway.http.request_headers import CallerAddress
from gateway.http.second_look import Made, is_due, payment_of, second_look
from gateway.http.validation import BodyValidator
from gateway.registry.execution import Family
from gateway.registry.operation import Operation
from gateway.registry.payment.checks import check
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Credential, Terms
from gateway.registry.sealing import Naming

__all__ = ["Incoming", "Node", "Outgoing", "Pipeline"]

log = structlog.get_logger(__name__)

SETTLEMENT_SLACK_S = 60.0
WHOLE_NODE = "node"
"""The caller that node-wide budgets are counted on."""
LOOK_AGAIN_S = 0.1
DECIDED_ON_CHAIN = (errors.SettlementPending, errors.PaymentAlreadyBound, errors.OperatorNeeded)
"""What a payment comes to that the chain was asked about, whether it was made or for something else."""


def new_key() -> str:
    """Return a key for a free call that came without one."""
    return secrets.token_urlsafe(24)


@attrs.frozen(eq=False)
class Node:
    """What the pipeline asks of the node."""

    terms: Terms | None
    secrets: QuoteSecrets
    naming: Naming
    callers: CallerAddress
    price_version: str
    families: Mapping[str, Family]
    path: SettlementPath
    want_path: Callable[[], None]
    idempotency: Ref[keys.Message]
    quota: Ref[quotas.Message]
    operations: Ref[OperationsMessage]
    settlement: Ref[SettlementMessage] | None
    clock_ms: Callable[[], int]
    clock_skew: Callable[[], int | None] = lambda: None
    new_key: Callable[[], str] = new_key
    lanes: Lanes = attrs.field(factory=Lanes)
    means: Means = attrs.field(factory=Means)


@attrs.frozen(eq=False)
class Pipeline:
    """The road of one operation."""

    operation: Operation
    node: Node
    reader: Reader
    quoting: Quoting | None

    @classmethod
    def of(cls, operation: Operation, node: Node) -> Pipeline:
        """Make the road of an operation."""
        reader = Reader(operation, BodyValidator.of(operation), node.callers, node.terms, node.secrets)
        quoting = None
        if node.terms is not None:
            quoting = Quoting(
                operation, node.terms, node.secrets, node.price_version, node.clock_ms, lambda: node.path.head
            )
        return cls(operation, node, reader, quoting)

    async def call(self, incoming: Incoming) -> Outgoing:
        """Take a request down the road; raises the `GatewayError` that is the answer where it is no 200."""
        asked = self.reader.read(incoming)
        node = self.node
        if not self.operation.callable:
            raise errors.OperationNotCallable
        call = Call.of(asked, node.naming, made_key=None if asked.sold else node.new_key)
        applied: dict[str, str] = {}
        if asked.longest_s is not None:
            call = attrs.evolve(call, until=trio.current_time() + asked.longest_s)
            applied = {"Preference-Applied": f"wait={asked.longest_s}"}
        try:
            answer = await (self._quote if asked.sold and asked.credential is None else self._claim)(call)
        except (errors.OperationInProgress, errors.SettlementPending) as unfinished:
            unfinished.headers = call.more_headers | applied | unfinished.headers
            raise
        return attrs.evolve(answer, headers={**answer.headers, **applied}) if applied else answer

    def _answer(self, ended: ops.Ended, call: Call, headers: Mapping[str, str] | None = None) -> Outgoing:
        """Return a result, with the key that the caller is told; raises `QuoteConflict` for who may not read it."""
        payer = ended.receipt.get("payer")
        if call.reader is not None and payer is not None and payer.lower() != call.reader:
            raise errors.QuoteConflict("another payer has paid this quote")
        return outgoing(ended, call.more_headers | dict(headers or {}), form=self.operation.answer)

    # -- 4: the key --------------------------------------------------------------------------------------------------

    async def _quote(self, call: Call) -> Outgoing:
        """Answer a paid route that was asked without a payment it could take: by what its key names, or a quote."""
        patience = trio.current_time() + call.asked.wait_s
        while True:
            known = await self._look_up(call)
            ended = await self._standing(known, call, patience)
            if ended is not None:
                return self._answer(ended, call)
            if known.paid or known.undecided:
                return await self._claim(call)
            if not isinstance(known.operation, keys.Open):
                break
        self._admit(call, known)
        raise await self._challenged(call.asked.refusal or errors.PaymentRequired(), call)

    async def _claim(self, call: Call) -> Outgoing:
        """Answer a request that may claim an operation, one at a time for each key."""
        lanes, patience = self.node.lanes, trio.current_time() + call.asked.wait_s
        while (turn := lanes.ahead(call.lane)) is not None:
            with trio.move_on_at(patience) as waiting:
                await turn.over.wait()
            if waiting.cancelled_caught:
                return await self._impatient(call)
            outcome = turn.shared_with(call.authorization)
            if isinstance(outcome, GatewayError):
                raise await self._told(own(outcome), call)
            if outcome is not None:
                return self._answer(outcome, call)
        with lanes.turn(call.lane, call.authorization) as turn:
            return await self._in_turn(call, patience, turn)

    async def _in_turn(self, call: Call, patience: float, turn: Turn) -> Outgoing:
        """Answer a request that no other of this node is ahead of; one of another node may be."""
        waited_for: str | None = None
        known = keys.Known() if call.fresh else await self._look_up(call)
        while True:
            failure = _failed_meanwhile(known, waited_for, call)
            if failure is not None:
                turn.outcome = own(failure)
                raise await self._told(failure, call)
            ended = await self._standing(known, call, patience, turn)
            if ended is not None:
                return self._answer(ended, call)
            if isinstance(known.operation, keys.Open):
                waited_for = known.operation.operation_id
            else:
                try:
                    return await (self._serve_paid if call.asked.sold else self._serve_free)(call, known, turn)
                except errors.OperationInProgress:
                    if trio.current_time() >= patience:
                        raise
                    await trio.sleep(LOOK_AGAIN_S)  # another node was first with this key, or has failed with it
            known = await self._look_up(call)

    async def _impatient(self, call: Call) -> Outgoing:
        """Answer who has waited long enough behind another request with the same key."""
        known = await self._look_up(call)
        ended = await self._standing(known, call, trio.current_time())
        if ended is not None:
            return self._answer(ended, call)
        raise errors.OperationInProgress(retry_after=RETRY_AFTER_S)

    async def _look_up(self, call: Call) -> keys.Known:
        if not call.names and call.authorization is None:
            return keys.Known()
        message = keys.LookUp(
            call.names,
            call.asked.valid.request_hash,
            call.network_names,
            call.payer_names,
            call.authorization,
            call.reader,
        )
        try:
            return await self.node.idempotency.ask(message, within=10)
        except ActorError as error:
            raise errors.StoreUnavailable(
                f"keys cannot be looked up ({type(error).__name__})",
                extra={"reason": UNAVAILABLE},
                retry_after=RETRY_AFTER_S,
            ) from error

    async def _standing(
        self, known: keys.Known, call: Call, patience: float, turn: Turn | None = None
    ) -> ops.Ended | None:
        """Return what the key names if it has ended, or ends while the caller waits.

        Returns None where there is nothing to replay; after an open operation the key is to be looked up again.
        """
        found = known.operation
        if isinstance(found, ops.Ended):
            if turn is not None:
                turn.outcome = found
            return found
        if isinstance(found, keys.Open):
            left = max(patience - trio.current_time(), 0.0)
            try:
                return await self._operations(ops.Join(found.operation_id, left), left, call, turn)
            except errors.OperationInProgress as unfinished:
                if trio.current_time() >= patience:
                    if found.settling:
                        raise errors.SettlementPending(
                            operation_id=found.operation_id, retry_after=RETRY_AFTER_S
                        ) from unfinished
                    raise
                if not isinstance(unfinished, ops.Elsewhere):
                    await trio.sleep(LOOK_AGAIN_S)  # it ended a moment ago
                return None
        if known.payment_bound:
            raise errors.PaymentAlreadyBound
        return None

    # -- 5 and 6: quota and availability -----------------------------------------------------------------------------

    def _admit(self, call: Call, known: keys.Known) -> None:
        """Refuse what cannot be claimed, run or settled now, before anything is quoted; a kept result need not run."""
        self.node.means.admit("paid" if call.asked.sold and not known.paid else "free")
        earlier = known.operation if isinstance(known.operation, ops.Earlier) else None
        if earlier is None or earlier.sealed_output is None:
            self.node.families[self.operation.family].admit(self.operation.id, call.asked.valid.request)
        if call.asked.sold:
            self._admit_payment()

    def _admit_payment(self) -> None:
        """Refuse where no payment can be judged or settled now."""
        if self.node.clock_skew() is not None:
            raise errors.SettlementUnavailable(f"no payment can be judged ({CLOCK_SKEW})", extra={"reason": CLOCK_SKEW})
        closed = "payment_not_configured" if self.node.terms is None else self.node.path.closed
        if closed is not None:
            self.node.want_path()
            raise errors.SettlementUnavailable(f"no settlement path is open ({closed})", extra={"reason": closed})

    async def _spend(self, policy: str, caller: str) -> quotas.Allowance:
        return await spend(self.node.quota, policy, caller)

    def _give_back(self, policy: str, caller: str, counted_ms: int) -> None:
        give_back(self.node.quota, policy, caller, counted_ms)

    async def _serve_free(self, call: Call, known: keys.Known, turn: Turn) -> Outgoing:
        policy, (caller, _) = self.operation.quota, call.counted_as
        allowance = await self._spend(policy, caller)
        try:
            self._admit(call, known)
            budget = await self._spend_budget(call, known)
        except GatewayError as failure:
            self._give_back(policy, caller, allowance.opened_ms)
            failure.headers = allowance.headers | failure.headers
            raise
        try:
            ended = await self._submit(call, known, None, turn, budget=None if budget is None else budget.policy.name)
        except ops.Overtaken:
            self._give_back(policy, caller, allowance.opened_ms)
            if budget is not None:
                self._give_back(budget.policy.name, WHOLE_NODE, budget.opened_ms)
            raise
        return self._answer(ended, call, allowance.headers)

    async def _spend_budget(self, call: Call, known: keys.Known) -> quotas.Allowance | None:
        """Count a free call that an upstream bills on the budget for it; a kept result costs nothing."""
        earlier = known.operation if isinstance(known.operation, ops.Earlier) else None
        if earlier is not None and earlier.sealed_output is not None:
            return None
        budget = self.node.families[self.operation.family].budget(self.operation.id, call.asked.valid.request)
        return None if budget is None else await self._spend(budget, WHOLE_NODE)

    # -- 7: quote or payment -----------------------------------------------------------------------------------------

    async def _challenged(
        self, reason: errors.PaymentRequired, call: Call, attempt: Attempt | None = None
    ) -> errors.PaymentRequired:
        """Return the 402 with a fresh, exact, request-bound challenge of both protocols.

        It costs one of the caller's `unpaid_quotes`, unless its payment cost it an attempt already.
        """
        self.node.means.admit("paid")
        self._admit_payment()
        quoting = self._quoting()
        problem = self.operation.check(call.asked.valid.request)
        if problem is not None:
            raise problem  # it was quoted once and may not be again: the price has changed
        offer = quoting.offer(call.asked.valid, example=call.asked.example)
        allowance = attempt.allowance if attempt else await self._spend("unpaid_quotes", call.counted_as[0])
        refusal = quoting.challenged(reason, offer)
        refusal.headers |= allowance.headers | failed_settlement(reason, call.asked.credential)
        if not self.operation.key_required and call.asked.key is None:
            refusal.headers[KEY_HEADER] = self.node.naming.generated_keys(offer.quote.quote_id)[0]
        return refusal

    async def _told(self, failure: GatewayError, call: Call, attempt: Attempt | None = None) -> GatewayError:
        """Return a failure as it is answered: where it asks for another payment, it carries the challenge."""
        if isinstance(failure, errors.PaymentRequired):
            return await self._challenged(failure, call, attempt)
        return failure

    async def _serve_paid(self, call: Call, known: keys.Known, turn: Turn) -> Outgoing:
        self._admit(call, known)
        if known.paid:
            return self._answer(await self._submit(call, known, None, turn), call)
        if _is_of_another(known, call):
            return await self._decided_first(call, known, turn)
        credential = call.asked.credential
        if credential is None:
            raise await self._challenged(call.asked.refusal or errors.PaymentRequired(), call)
        network, payer = call.counted_as
        try:
            quote, attempt = self._checked(credential, call), await Attempt.of(self.node.quota, network)
        except errors.PaymentRefused as refused:
            quote, attempt = await self._paid_all_the_same(refused, credential, call, known)
        try:
            allowance = await self._spend("paid", payer)
        except GatewayError:
            attempt.give_back()
            raise
        try:
            ended = await self._submit(call, known, payment_of(credential, quote), turn, attempt=attempt)
        except ops.Overtaken:
            attempt.give_back()
            self._give_back("paid", payer, allowance.opened_ms)
            raise
        except (errors.PaymentRequired, errors.OperationInProgress, *DECIDED_ON_CHAIN):
            raise  # the payment was refused or looked for, or the operation goes on and gives the attempt back itself
        except GatewayError:
            attempt.give_back()
            raise
        attempt.give_back()
        if not ended.replayed:
            self._give_back("unpaid_quotes", network, (quote.issued_at + 1) * 1000)
        return self._answer(ended, call, allowance.headers)

    async def _decided_first(self, call: Call, known: keys.Known, turn: Turn) -> Outgoing:
        """Go on with the payment of the failed attempt, which may have been made; it costs an attempt to ask.

        Raises `OperationInProgress` where it was not: another may be asked for, or taken.
        """
        attempt = await Attempt.of(self.node.quota, call.counted_as[0])
        try:
            ended = await self._submit(call, known, None, turn, attempt=attempt)
        except ops.Overtaken:
            attempt.give_back()
            raise
        attempt.give_back()
        return self._answer(ended, call)

    async def _paid_all_the_same(
        self, refused: errors.PaymentRefused, credential: Credential, call: Call, known: keys.Known
    ) -> tuple[Quote, Attempt]:
        """Raise what a refused credential is told, after a look at the chain where that may know more.

        Returns the quote of one that its own failed attempt is known by, and that has paid since.
        """
        node, now = self.node, self.node.clock_ms() // 1000
        pay_to = self._quoting().terms.pay_to
        if node.settlement is None or not is_due(refused, credential, pay_to=pay_to, now=now):
            raise await self._challenged(refused, call) from None
        attempt = await Attempt.of(node.quota, call.counted_as[0])
        try:
            refused = await second_look(refused, credential, node.settlement)
        except Made:
            quote = call.asked.quote
            if quote is None or not _is_its_own(credential, refused, known):
                raise
            return quote, attempt
        raise await self._challenged(refused, call, attempt) from None

    def _checked(self, credential: Credential, call: Call) -> Quote:
        """Return the quote that a credential pays; raises what is wrong with it, without asking anybody."""
        if credential.fault is not None:
            raise own(credential.fault)
        quoting = self._quoting()
        quote = call.asked.quote or self.node.secrets.open(credential.quote_token, quoting.terms)
        offer = quoting.offered(call.asked.valid, credential, quote)
        check(credential, quote, offer, now=self.node.clock_ms() // 1000)
        return quote

    def _quoting(self) -> Quoting:
        if self.quoting is None:
            raise errors.SettlementUnavailable(
                "payments are not configured", extra={"reason": "payment_not_configured"}
            )
        return self.quoting

    async def _submit(
        self,
        call: Call,
        known: keys.Known,
        payment: Payment | None,
        turn: Turn,
        *,
        budget: str | None = None,
        attempt: Attempt | None = None,
    ) -> ops.Ended:
        valid = call.asked.valid
        order = ops.Order(
            operation=self.operation,
            body=valid.body,
            request=valid.request,
            request_hash=valid.request_hash,
            names=call.names,
            callers=call.callers,
            payment=payment,
            earlier=known.operation if isinstance(known.operation, ops.Earlier) else None,
            budget=budget,
            fresh=call.fresh,
            cleared=attempt.give_back if attempt else None,
            network=call.asked.network,
        )
        within = self.operation.time_for(valid.request) + SETTLEMENT_SLACK_S
        return await self._operations(ops.Submit(order, call.asked.wait_s, call.until), within, call, turn, attempt)

    async def _operations(
        self,
        message: ops.Submit | ops.Join,
        within: float,
        call: Call,
        turn: Turn | None,
        attempt: Attempt | None = None,
    ) -> ops.Ended:
        """Ask the operations actor; what it never saw is retryable, what it saw goes on without us."""
        try:
            ended = await self.node.operations.ask(message, within=within + 5)
        except trio.Cancelled:
            self._leave(message)
            raise
        except (Overloaded, ActorDown) as error:
            raise errors.CapacityExhausted(
                "the node takes no more operations now", retry_after=RETRY_AFTER_S
            ) from error
        except ActorError as error:
            paid = isinstance(message, ops.Join) or message.order.payment is not None
            kind = errors.SettlementPending if paid else errors.OperationInProgress
            raise kind("the operation goes on without this request", retry_after=RETRY_AFTER_S) from error
        except (errors.OperationInProgress, errors.SettlementPending):
            raise
        except GatewayError as failure:
            if turn is not None:
                turn.outcome = own(failure)
            raise await self._told(own(failure), call, attempt) from None
        if turn is not None:
            turn.outcome = ended
        return ended

    def _leave(self, question: ops.Submit | ops.Join) -> None:
        """Tell that the client went away; where that cannot be told, the operation comes to its end all the same."""
        try:
            self.node.operations.tell(ops.Leave(question))
        except ActorError as error:
            log.info("leave_not_told", error=type(error).__name__)


def _failed_meanwhile(known: keys.Known, waited_for: str | None, call: Call) -> GatewayError | None:
    """Return how the attempt failed that another node ran while this request waited for it.

    A refused payment is told to who brought the same; anybody else may pay for the next attempt.
    """
    earlier = known.operation
    if not isinstance(earlier, ops.Earlier) or earlier.failure is None or earlier.operation_id != waited_for:
        return None
    failure = earlier.failure.error(earlier.operation_id)
    if isinstance(failure, errors.ExecutionCancelled):
        return None  # its callers had left
    theirs = call.authorization is not None and call.authorization[3] == earlier.failure.nonce
    return failure if theirs or not isinstance(failure, errors.PaymentRequired) else None


def _is_of_another(known: keys.Known, call: Call) -> bool:
    """Return True where the failed attempt has a payment that may have been made, and the request brings no such."""
    earlier = known.operation
    if not known.undecided or not isinstance(earlier, ops.Earlier) or earlier.failure is None:
        return False
    return call.authorization is None or call.authorization[3] != earlier.failure.nonce


def _is_its_own(credential: Credential, refused: errors.PaymentRefused, known: keys.Known) -> bool:
    """Return True for the payment of the failed attempt that the request's names stand for, refused for its age."""
    earlier = known.operation
    if not isinstance(earlier, ops.Earlier) or earlier.failure is None:
        return False
    if not isinstance(refused, errors.QuoteExpired | errors.AuthorizationExpiresTooSoon):
        return False
    return earlier.failure.nonce == credential.authorization_key()[3]
