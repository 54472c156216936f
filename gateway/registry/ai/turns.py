"""The turns of a chat as upstreams take them that know user and model only, and instructions apart from both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile

from gateway.registry.ai.prompt import Message, Prompt


def disorder(prompt: Prompt) -> str | None:
    """Return the machine word for an order of turns that cannot be told to such an upstream; None: it can.

    Instructions come before all turns: moved there, later ones would mean something else.  The user begins and has the
    last word: Anthropic refuses an assistant's first turn, and continues the text of its last one, or refuses it.
    """
    turns = spoken(prompt)
    if not turns or any(each.role == "system" for each in turns):
        return "turn_order_unsupported"
    return None if turns[0].role == turns[-1].role == "user" else "turn_order_unsupported"


def instructions(prompt: Prompt) -> Sequence[str]:
    """Return the texts of the system messages before the first turn."""
    return [each.content for each in prompt.messages[: len(prompt.messages) - len(spoken(prompt))]]


def spoken(prompt: Prompt) -> Sequence[Message]:
    """Return what follows the instructions."""
    return list(dropwhile(lambda each: each.role == "system", prompt.messages))
