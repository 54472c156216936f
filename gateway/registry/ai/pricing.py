"""What `ai.execute` costs: integers only, published in the catalog, the same for the quote and for the charge."""

from __future__ import annotations

from gateway.registry.ai.catalog import Model
from gateway.registry.ai.prompt import Prompt

MOST = 2_621_440
"""The most that a call may cost, in USD micro-units: what would cost more is refused before it is quoted."""
LEAST = 1
"""One atomic unit of a token of six decimals."""
MESSAGE_TOKENS = 16
"""What roles and separators of a message may take, beside its text."""


def prompt_tokens(prompt: Prompt) -> int:
    """Return an upper bound of a prompt's tokens, whatever the tokenizer: UTF-8 bytes, and 16 a message."""
    return sum(len(each.content.encode()) + MESSAGE_TOKENS for each in prompt.messages)


def execute_price(model: Model, prompt: Prompt, *, margin_percent: int = 100) -> int:
    """Return what answering a prompt costs, in USD micro-units; 0 where the model has no rates.

    Every output token that was asked for is paid.  Rounded up, and at least `LEAST`; it may be over `MOST`, and is then
    for the caller to refuse, never to be lowered.  `margin_percent`: of the rates, 100 is the rates themselves.

    Source: reference formula of the price of `ai.execute`, interface.md 4.4 for its bounds.
    """
    rates = model.rates
    if rates is None:
        return 0
    tokens_in = prompt_tokens(prompt)
    long = rates.long_over is not None and tokens_in > rates.long_over
    input_percent, output_percent = (rates.long_input_percent, rates.long_output_percent) if long else (100, 100)
    weighed = tokens_in * rates.input * input_percent + prompt.max_output_tokens * rates.output * output_percent
    return max(LEAST, _ceil_div(weighed * margin_percent, 10**6 * 100 * 100))


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
