"""What a client is told to do about a failure: one table for `retryable`, `next`, `Retry-After` and `x-should-retry`.

The class of a failure decides first (`gateway.errors`).  Where the class is retryable, its machine `reason` may take
that back: a reason passes by itself, or only another request lifts it, or only the operator of the node.  A new reason
has its entry here; `tests/http/test_advice.py` finds those that have none.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from gateway import errors
from gateway.errors import GatewayError

SOON_S = 2.0
"""When to try again where the failure itself does not know better."""
LONGEST_WAIT_S = 60
"""The `Retry-After` up to which OpenAI's clients wait; past it the older of them try again at once."""
RETRIED = frozenset({408, 409, 429})
"""What those clients send again, beside every 5xx."""
TIMED = frozenset({409, 429})
"""What says when to try again wherever that helps, as every 5xx does."""


class Lifted(enum.Enum):
    """What ends the cause of a failure."""

    BY_TIME = "time"
    BY_ANOTHER_REQUEST = "another request"
    BY_THE_OPERATOR = "the operator"


BY_REASON: tuple[type[GatewayError], ...] = (
    errors.ExecutorFailed,
    errors.ExecutionFailed,
    errors.OperationUnavailable,
    errors.CapacityExhausted,
    errors.StoreUnavailable,
    errors.SettlementUnavailable,
)
"""Kinds, with those derived from them, whose `reason` decides.  Their `next` begins with a sentence about money."""
EXECUTED = (errors.ExecutorFailed, errors.ExecutionFailed)

PASSING = frozenset(
    {
        # The store: the node tries again by itself, and a replica, a disk or a role that is mended is used at once.
        "disk_full",
        "read_only",
        "io_error",
        "locked",
        "out_of_memory",
        "overloaded",
        "stalled",
        "crashed",
        "stopped",
        "unreachable",
        "too_many_connections",
        "slow",
        "starting",
        "shutting_down",
        "lease_lost",
        "store_unavailable",
        "store_login_refused",
        "store_database_missing",
        "store_permission_denied",
        "store_schema_missing",
        "store_refused",
        "store_pooled",
        "tls_failed",
        "unwritable",
        "clock_skew",  # a time service sets a clock right within minutes
        "restarting",
        # Proofs: the prober looks again within seconds.
        "unproven",
        "not_probed",
        "proof_expired",
        "consecutive_failures",
        "call_failed",
        "probe_failed",
        "probe_crashed",
        "probe_timeout",
        "canary_failed",
        "canary_crashed",
        "canary_timeout",
        # Back ends of any kind: they were away, slow, broken or full.
        "timeout",
        "connection_broken",
        "upstream_failed",
        "upstream_error",
        "executor_failed",
        "execution_failed",
        "execution_reconciliation",
        "malformed_answer",
        "garbage",
        "error",
        "blocked",  # engines let a node in again after minutes
        "worker_failed",
        "empty_choices",  # OpenRouter's sign of a provider that is still warming up
        "wrong_model",
        "limit_ignored",
        "busy",
        "no_slot",
        "node_overloaded",
        "answer_lost",
        "deadline",
        "budget_not_reserved",
        "embedded_model_busy",
        # The embedded model: its supervisor starts it again.
        "killed",
        "hung",
        "start_timeout",
        # The chain: another end point answers, or this one catches up.
        "rpc_behind",
        "rpc_stale",
        "rpc_contradiction",
        "rpc_search_unfinished",
        "authorization_expiring",
        # Runs of commands: they wait for room, or their launcher is started again.
        "queue_full",
        "waited",
        "called_off",
        "no_descriptors",
        "setup_timeout",
        "supervisor_lost",
        "sandbox.check_failed",
        "sandbox.cleanup_failed",
        "sandbox.launcher_broken",
        "sandbox.launcher_died",
        "sandbox.launcher_hung",
        "sandbox.setup_failed",
        "sandbox.spawn_refused",
        "sandbox.starter_gone",
        "sandbox.stopped",
    }
)

OF_THE_REQUEST = frozenset(
    {
        # What came of this request is no result, and the next try would come to the same.
        "answer_too_large",
        "result_too_large",
        "context_length_exceeded",
        "empty_content",
        "flagged_input",
        "no_text",
        "not_json",
        "prompt_over_rate",
        "tool_call",
        "unfinished",
        "not_started",  # the kernel would not start such a command
        "cancelled",
        "memory",  # with these limits it never fits
    }
)

OF_THE_OPERATOR = frozenset(
    {
        "no_route",
        "not_offered",
        "not_configured",
        "payment_not_configured",
        "switched_off",
        # The store stays away until the operator sees to it.
        "corrupt",
        "file_replaced",
        # Back ends as they are configured.
        "key_missing",
        "route_refused",
        "extra_not_installed",
        "index_empty",
        "index_unreadable",
        "no_engine_enabled",
        "model_not_installed",
        "model_not_listed",
        "model_retired",
        "model_without_chat",
        # Settlement as it is configured.
        "facilitator_does_not_support_network",
        "rpc_not_configured",
        "rpc_no_reads_by_block_hash",
        "rpc_wrong_chain",
        # The host, and what the sandbox is made of.
        "sandbox.bwrap_broken",
        "sandbox.bwrap_failed",
        "sandbox.bwrap_missing",
        "sandbox.bwrap_setuid",
        "sandbox.bwrap_too_old",
        "sandbox.bwrap_vulnerable",
        "sandbox.bwrap_writable",
        "sandbox.cgroup_not_delegated",
        "sandbox.cgroup_not_writable",
        "sandbox.cgroups_missing",
        "sandbox.cpu_accounting_missing",
        "sandbox.filter_digest_mismatch",
        "sandbox.hardening_failed",
        "sandbox.image_architecture_unsupported",
        "sandbox.image_build_failed",
        "sandbox.image_closed",
        "sandbox.image_digest_mismatch",
        "sandbox.image_from_host",
        "sandbox.image_missing",
        "sandbox.image_pin_gone",
        "sandbox.image_source_mismatch",
        "sandbox.image_tool_missing",
        "sandbox.image_unsafe",
        "sandbox.inotify_few",
        "sandbox.kernel_too_old",
        "sandbox.launcher_missing",
        "sandbox.launcher_root_uid",
        "sandbox.launcher_short_of_capabilities",
        "sandbox.leftovers",
        "sandbox.memory_little",
        "sandbox.memory_short",
        "sandbox.no_new_privileges",
        "sandbox.one_slot",
        "sandbox.pipes_small",
        "sandbox.proc_denied",
        "sandbox.seccomp_unsupported",
        "sandbox.slot_uid_in_use",
        "sandbox.slot_uid_shared",
        "sandbox.slot_uid_unmapped",
        "sandbox.starter_digest_mismatch",
        "sandbox.starter_missing",
        "sandbox.swap_accounting_missing",
        "sandbox.userns_denied",
        "sandbox.userns_untried",
    }
)

WHOSE = ("rpc_", "facilitator_", "config_", "health_")
"""Prefixes that say whose reason follows."""
SANDBOX = "sandbox."
CANARY = "sandbox.canary_"
"""Canaries are run again by themselves, and a host under load may fail one of them once."""
STATUS = "status_"
STATUSES_OF_THE_REQUEST = frozenset({400, 413, 414, 422})
PASSING_STATUSES = frozenset({408, 409, 425, 429})

ANOTHER_REQUEST = "The same request would end the same way. Change it, and send it with a fresh Idempotency-Key."
ASK_THE_OPERATOR = "Only the operator of this node can change this. Tell them the `reason`."


@attrs.frozen
class Advice:
    """What a client does now.

    Attributes:
        retryable: the same request may be answered otherwise: later, or with the payment that the answer asks for.
        retry_after: whole seconds until then, at least 1; None where there is nothing to wait for.
        next: the same in words.
        unattended: a client that sends it again by itself, in seconds and unchanged, does well.
    """

    retryable: bool
    retry_after: int | None
    next: str | None
    unattended: bool


def advice(failure: GatewayError) -> Advice:
    """Return what a client is told to do about a failure."""
    lifted = lifted_by(failure)
    if not failure.retryable or lifted is not Lifted.BY_TIME:
        return Advice(retryable=False, retry_after=None, next=_otherwise(failure, lifted), unattended=False)
    wait = failure.retry_after
    if wait is None and (failure.status in TIMED or failure.status >= 500):
        wait = SOON_S
    retry_after = None if wait is None else max(1, math.ceil(wait))
    is_retried = failure.status in RETRIED or failure.status >= 500
    unattended = is_retried and (retry_after or 0) <= LONGEST_WAIT_S
    return Advice(retryable=True, retry_after=retry_after, next=failure.next, unattended=unattended)


def lifted_by(failure: GatewayError) -> Lifted:
    """Return what ends the cause of a failure, as its reason tells; an unknown reason passes.

    Where several back ends were tried or are closed, it passes if that of one of them does.
    """
    reason = failure.extra.get("reason")
    if not isinstance(failure, BY_REASON) or not isinstance(reason, str):
        return Lifted.BY_TIME
    executed = isinstance(failure, EXECUTED)
    lifted = decided(reason, executed=executed) or Lifted.BY_TIME
    if lifted is Lifted.BY_THE_OPERATOR and any(
        decided(each, executed=executed) is Lifted.BY_TIME for each in _of_others(failure)
    ):
        return Lifted.BY_TIME
    return lifted


def _of_others(failure: GatewayError) -> Iterator[str]:
    """Yield the reasons of all back ends that a failure tells of."""
    routes, attempts = failure.extra.get("routes"), failure.extra.get("attempts")
    if isinstance(routes, Mapping):
        yield from (each for each in routes.values() if isinstance(each, str))
    if isinstance(attempts, Sequence):
        yield from (each["outcome"] for each in attempts)


def decided(reason: str, *, executed: bool) -> Lifted | None:
    """Return what the table says of a reason, None where it does not know it.

    `executed` says that it is why an execution failed.  Else it is why something is closed, which no single request
    lifts: what one request came to passes, and a back end that refuses a probe is not set up right.  What befell one
    sandbox passes too: the host is looked at again, and the sandbox is closed where that is at fault.
    """
    if reason in PASSING or reason.startswith(CANARY) or (executed and reason.startswith(SANDBOX)):
        return Lifted.BY_TIME
    if reason in OF_THE_OPERATOR:
        return Lifted.BY_THE_OPERATOR
    if reason in OF_THE_REQUEST:
        return Lifted.BY_ANOTHER_REQUEST if executed or reason == "memory" else Lifted.BY_TIME
    status = reason.removeprefix(STATUS)
    if status != reason and status.isdecimal():
        return _of_status(int(status), executed=executed)
    for prefix in WHOSE:
        if reason.startswith(prefix):
            return decided(reason.removeprefix(prefix), executed=False)
    return None


def _of_status(status: int, *, executed: bool) -> Lifted:
    if status in PASSING_STATUSES or not 400 <= status < 500:
        return Lifted.BY_TIME
    if status in STATUSES_OF_THE_REQUEST and executed:
        return Lifted.BY_ANOTHER_REQUEST
    return Lifted.BY_THE_OPERATOR


def _otherwise(failure: GatewayError, lifted: Lifted) -> str | None:
    if not failure.retryable or failure.next is None:
        return failure.next
    money, _, _ = failure.next.partition(". ")
    return f"{money}. {ANOTHER_REQUEST if lifted is Lifted.BY_ANOTHER_REQUEST else ASK_THE_OPERATOR}"
