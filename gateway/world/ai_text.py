"""What the simulated models say: made up from what they are asked, the same for the same, counted in made-up tokens."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

REASONING_TOKENS = 12
"""What a model that reasons spends before it says anything."""
LEAST_REASONING_TOKENS = 16
"""With room for fewer, a model that reasons refuses (OpenAI: "expected a value >= 16")."""
MESSAGE_TOKENS = 4
TOPIC = 80
DEPTH = 8
ITEMS = 16
PIECE = re.compile(r"\s*(?:\w+|[^\w\s])")
OPENINGS = (
    'This is a made-up answer about "{}".',
    'Here is what a simulated model says of "{}".',
    'A stand-in answers your question: "{}".',
)
SENTENCES = (
    "The short answer depends on what is measured, and how.",
    "Three views of it are common, and none of them is complete.",
    "What is known today rests on a few careful observations.",
    "An example makes the difference plain.",
    "In practice the simplest account is the one that is used.",
    "Its history explains most of the words that are in use.",
)
WORDS = ("alder", "birch", "cedar", "elm", "hazel", "larch", "maple", "rowan", "spruce", "willow")


@attrs.frozen
class Asked:
    """A chat as a model understands it, whatever format it came in.

    Attributes:
        model: the upstream's name of it.
        texts: what was said, the last turn last.
        most_tokens: to be answered in at most this many.
        reasons: some of them are spent on reasoning.
        stop: texts before which the answer ends.
        json: the answer is JSON, of `schema` where there is one.
    """

    model: str
    texts: tuple[str, ...]
    most_tokens: int
    reasons: bool = False
    stop: tuple[str, ...] = ()
    json: bool = False
    schema: Mapping[str, Any] | None = None


@attrs.frozen
class Answer:
    """What a model answered; `output_tokens` are the reasoning ones and those of the text together."""

    id: str
    text: str
    finish: Literal["stop", "length"]
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int


def made_up(asked: Asked) -> Answer:
    """Return the answer to what was asked, always the same one."""
    said = "\n".join((asked.model, *asked.texts, json.dumps(asked.schema, sort_keys=True)))
    seed = hashlib.sha256(said.encode("utf-8", "replace"))
    chance = random.Random(seed.digest())  # noqa: S311 - plausible words, not secrets
    text = _json(asked, chance) if asked.json else _prose(asked, chance)
    for stop in asked.stop:
        text = text.partition(stop)[0]
    reasoning = REASONING_TOKENS if asked.reasons else 0
    pieces = PIECE.findall(text)
    room = max(asked.most_tokens - reasoning, 0)
    told = pieces[:room]
    return Answer(
        id=seed.hexdigest()[:24],
        text="".join(told),
        finish="stop" if len(told) == len(pieces) else "length",
        input_tokens=sum(count(each) + MESSAGE_TOKENS for each in asked.texts),
        output_tokens=reasoning + len(told),
        reasoning_tokens=reasoning,
    )


def count(text: str) -> int:
    """Return the tokens of a text: its words and marks."""
    return len(PIECE.findall(text))


def _topic(asked: Asked) -> str:
    return " ".join(asked.texts[-1].split())[:TOPIC]


def _prose(asked: Asked, chance: random.Random) -> str:
    return " ".join((chance.choice(OPENINGS).format(_topic(asked)), *chance.sample(SENTENCES, 2)))


def _json(asked: Asked, chance: random.Random) -> str:
    value = {"simulated": True, "topic": _topic(asked)} if asked.schema is None else of_schema(asked.schema, chance)
    return json.dumps(value, ensure_ascii=False)


def of_schema(schema: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return a value of a JSON schema's type, constants and alternatives; what else it asks for is not looked at."""
    if not isinstance(schema, Mapping) or depth > DEPTH:
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return chance.choice(values)
    if isinstance(alternatives := schema.get("anyOf"), list) and alternatives:
        return of_schema(alternatives[0], chance, depth + 1)
    kind = schema.get("type", "object")
    match str(kind[0] if isinstance(kind, list) and kind else kind).lower():
        case "object":
            members = schema.get("properties")
            members = members if isinstance(members, Mapping) else {}
            return {name: of_schema(each, chance, depth + 1) for name, each in members.items()}
        case "array":
            least = schema.get("minItems")
            number = min(least, ITEMS) if isinstance(least, int) and least > 0 else 1
            return [of_schema(schema.get("items"), chance, depth + 1) for _ in range(number)]
        case scalar:
            return _scalar(scalar, schema, chance)


def _scalar(kind: str, schema: Mapping[str, Any], chance: random.Random) -> Any:
    least = schema.get("minimum")
    base = int(least) if isinstance(least, int | float) else 0
    made = {
        "string": " ".join(chance.sample(WORDS, 2)),
        "integer": base + chance.randrange(10),
        "number": base + chance.randrange(10) / 4,
        "boolean": chance.random() < 0.5,
    }
    return made.get(kind)
