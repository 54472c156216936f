from __future__ import annotations

import pytest

from gateway.registry.ai.prompt import Message, Prompt
from gateway.registry.ai.turns import disorder, instructions, spoken


def chat(roles: str) -> Prompt:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return Prompt("m", tuple(Message(names[each], f"{each}{n}") for n, each in enumerate(roles)), 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("roles", ["u", "su", "ssu", "uau", "uu", "suaau", "suuaauu"])
def test_instructions_then_turns_that_the_user_begins_and_ends_are_in_order(roles: str) -> None:
    assert disorder(chat(roles)) is None


@pytest.mark.parametrize("roles", ["", "s", "ss", "a", "au", "ua", "sau", "sua", "usu", "us", "suasu"])
def test_any_other_order_is_left_to_other_routes(roles: str) -> None:
    assert disorder(chat(roles)) == "turn_order_unsupported"


@pytest.mark.parametrize("roles", ["u", "su", "ssuau"])
def test_every_message_is_an_instruction_or_a_turn(roles: str) -> None:
    prompt = chat(roles)
    told = [*instructions(prompt), *(each.content for each in spoken(prompt))]
    assert told == [each.content for each in prompt.messages]
    assert len(instructions(prompt)) == roles.count("s")
