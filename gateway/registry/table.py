"""The table of operations: adding one is an entry here and an executor for its family."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from functools import partial

from gateway.errors import ExecutionFailed, ExecutorFailed
from gateway.registry.ai import chat_request as chat
from gateway.registry.ai import execute_request as ai_execute
from gateway.registry.ai import fast_call_request as fast_call
from gateway.registry.operation import Operation
from gateway.registry.search import request as search
from gateway.sandbox import request as sandbox
from gateway.sandbox.image import load_lock, names_of
from gateway.sandbox.image_refusal import ArchitectureUnsupported
from gateway.sandbox.limits import LONGEST_DEADLINE_S

PRICE_VERSION = "2026-07-25.3"
"""The catalog version (interface.md 9) that prices are quoted from."""

SEARCH_PAID_PRICE = 6_000
"""0.006000 USD in millionths (interface.md 4.3)."""

SEARCH_BODY_CAP = 64 * 1024
SEARCH_DEADLINE_S = 12.0

SEARCH_FREE = Operation(
    id="search.free",
    path="/v1/search/free",
    title="Free web search",
    summary="Raw, cited search results within the published free quota.",
    schema=search.SCHEMA,
    example=search.EXAMPLE,
    request=search.SearchRequest,
    paid=False,
    price=lambda _: 0,
    key_required=True,
    body_cap=SEARCH_BODY_CAP,
    deadline_s=SEARCH_DEADLINE_S,
    quota="free_search",
    family="search",
    failure=ExecutorFailed,
    refine=search.refine,
)

SEARCH_PAID = Operation(
    id="search.paid",
    path="/v1/search/paid",
    title="Paid web search",
    summary="Raw, cited search results for a fixed price.",
    schema=search.SCHEMA,
    example=search.EXAMPLE,
    request=search.SearchRequest,
    paid=True,
    price=lambda _: SEARCH_PAID_PRICE,
    key_required=True,
    body_cap=SEARCH_BODY_CAP,
    deadline_s=SEARCH_DEADLINE_S,
    quota="paid",
    family="search",
    failure=ExecutorFailed,
    refine=search.refine,
)

AI_DEADLINE_S = 60.0
EXECUTE_BODY_CAP = 16 * 2**20
CHAT_BODY_CAP = 256 * 1024

CHAT_COMPLETIONS = Operation(
    id=chat.OPERATION,
    path="/v1/chat/completions",
    title="Chat completion",
    summary="A chat in OpenAI's form: free within the published quota, paid at the flat price of the model's row.",
    schema=chat.SCHEMA,
    example=chat.EXAMPLE,
    request=chat.ChatRequest,
    paid=True,
    price=chat.price,
    key_required=False,
    body_cap=CHAT_BODY_CAP,
    deadline_s=AI_DEADLINE_S,
    quota="free_ai",
    family="ai",
    failure=ExecutionFailed,
    refine=chat.refine,
    check=chat.check,
    cap=chat.body_cap,
    funding_header=True,
    answer="chat_completion",
    stops_when_left=True,
)

FAST_CALL = Operation(
    id="agent.fast-call",
    path="/v1/agent/fast-call",
    title="Fast call",
    summary="A preview: listed with its price, not callable and not purchasable.",
    schema=fast_call.SCHEMA,
    example=fast_call.EXAMPLE,
    request=fast_call.FastCallRequest,
    paid=False,
    price=lambda _: 0,
    key_required=False,
    body_cap=fast_call.BODY_CAP,
    deadline_s=fast_call.DEADLINE_S,
    quota="free_ai",
    family="ai",
    failure=ExecutionFailed,
    callable=False,
)


def ai_execute_operation(margin_percent: int) -> Operation:
    """Return `ai.execute` with prices of so many percent of the catalog's rates."""
    return Operation(
        id=ai_execute.OPERATION,
        path="/v1/ai/execute",
        title="AI chat",
        summary="A bounded chat: free models within the published quota, paid ones at a price bound to the request.",
        schema=ai_execute.schema(),
        example=ai_execute.EXAMPLE,
        request=ai_execute.ExecuteRequest,
        paid=True,
        price=partial(ai_execute.price, margin_percent=margin_percent),
        key_required=False,
        body_cap=EXECUTE_BODY_CAP,
        deadline_s=AI_DEADLINE_S,
        quota="free_ai",
        family="ai",
        failure=ExecutionFailed,
        refine=ai_execute.refine,
        check=partial(ai_execute.check, margin_percent=margin_percent),
        funding_header=True,
        stops_when_left=True,
    )


def pinned_names(machine: str | None = None) -> Callable[[str], object]:
    """Return what tells of an argv[0] whether the pinned image has it.

    Of a machine that there is no image for nothing can be told, and nothing runs there.
    """
    try:
        return names_of(load_lock(machine or platform.machine()))
    except ArchitectureUnsupported:
        return lambda _: True


def sandbox_execute_operation(resolves: Callable[[str], object]) -> Operation:
    """Return `sandbox.execute` for an image; `resolves` is asked for argv[0] (`Image.resolves`)."""
    return Operation(
        id=sandbox.OPERATION,
        path="/v1/sandbox/execute",
        title="Sandboxed command",
        summary="One command, once, in a pinned JavaScript runtime without network, under strict limits.",
        schema=sandbox.SCHEMA,
        example=sandbox.EXAMPLE,
        request=sandbox.SandboxRequest,
        paid=True,
        price=sandbox.price,
        key_required=True,
        body_cap=sandbox.BODY_CAP,
        deadline_s=LONGEST_DEADLINE_S,
        quota="paid",
        family="sandbox",
        failure=ExecutionFailed,
        refine=sandbox.refine,
        check=partial(sandbox.check, resolves=resolves),
        own_deadline_s=sandbox.deadline_s,
        result_cap=sandbox.RESULT_CAP,
    )


def operations(margin_percent: int = 100, resolves: Callable[[str], object] | None = None) -> Mapping[str, Operation]:
    """Return the table by operation id; `resolves` tells what the sandbox's image has, None: what is pinned."""
    entries = (
        SEARCH_FREE,
        SEARCH_PAID,
        ai_execute_operation(margin_percent),
        CHAT_COMPLETIONS,
        FAST_CALL,
        sandbox_execute_operation(resolves or pinned_names()),
    )
    return {each.id: each for each in entries}


OPERATIONS: Mapping[str, Operation] = operations()
