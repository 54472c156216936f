"""Which of OpenAI's chat completions a server speaks, told from its address and the model's name.

Servers differ in the name of the limit of output tokens.  OpenAI's reasoning models refuse `max_tokens`
(openai/openai-agents-python#679); Ollama ignores `max_completion_tokens` and would answer without end
(ollama/ollama#7125), llama.cpp did until early 2026 (ggml-org/llama.cpp#13700), Mistral refuses it.  So the new name
goes to OpenAI itself and with the names of its reasoning models, the old one, which all others know, elsewhere.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import attrs

from gateway.registry.ai.prompt import Prompt, Sampling

VERSION_SEGMENT = re.compile(r"v\d+[a-z0-9]*")
WEIGHTS_FILE = re.compile(r"(?:[^\n]*[/\\])?([^/\\\n]+?)(?:\.gguf)?")
REASONING_MODEL = re.compile(
    r"(?:[^\n]*/)?(?:o[1-9]|gpt-(?P<major>[5-9])(?:\.(?P<minor>\d{1,3}))?)(?![^\n]*-chat)(?:[-:@][^\n]*)?"
)
OPEN_WEIGHTS_MODEL = re.compile(r"(?:[^\n]*/)?gpt-oss(?:[-:@][^\n]*)?")


@attrs.frozen
class Dialect:
    """What is particular to one model of one server.

    Attributes:
        root: the address that paths are added to.
        limit: the member that limits output tokens.
        efforts: the values of `reasoning_effort` that the model is known to take; none: it is not known to take any.
        openai: the server is OpenAI's own.
        openrouter: it is OpenRouter.
        reasons: the model is one of OpenAI's reasoning models.
    """

    root: str
    limit: str
    efforts: frozenset[str]
    openai: bool
    openrouter: bool
    reasons: bool

    def lacks(self, prompt: Prompt) -> str | None:
        """Return the machine word for the first thing of `prompt` that would be refused or ignored; None: nothing.

        OpenAI's own server wants the word JSON among the messages of a JSON mode without a schema, and its reasoning
        models take no sampling other than the default.
        """
        sampling = prompt.sampling
        if sampling.reasoning_effort is not None and sampling.reasoning_effort not in self.efforts:
            return "reasoning_effort_unsupported"
        if not self.openai:
            return None
        if prompt.response_format.kind == "json_object" and not any(
            "json" in each.content.lower() for each in prompt.messages
        ):
            return "json_not_mentioned"
        return without_sampling(sampling) if self.reasons else None


def dialect_of(base_url: str, model: str) -> Dialect:
    """Return the dialect; a `base_url` without a version in its path is that of `/v1` beneath it."""
    root = base_url.rstrip("/")
    host = urlsplit(root).hostname or ""
    if not any(VERSION_SEGMENT.fullmatch(each) for each in urlsplit(root).path.split("/")):
        root += "/v1"
    openai, openrouter = _within(host, "openai.com"), _within(host, "openrouter.ai")
    reasons = REASONING_MODEL.fullmatch(model) is not None
    return Dialect(
        root=root,
        limit="max_completion_tokens" if openai or (reasons and not openrouter) else "max_tokens",
        efforts=_efforts(model),
        openai=openai,
        openrouter=openrouter,
        reasons=reasons,
    )


def without_sampling(sampling: Sampling) -> str | None:
    """Return what a model without settings of its sampling cannot honour of it; the defaults are no wish."""
    wishes = (
        ("temperature", sampling.temperature not in (None, 1)),
        ("top_p", sampling.top_p not in (None, 1)),
        ("stop", bool(sampling.stop)),
        ("presence_penalty", bool(sampling.presence_penalty)),
        ("frequency_penalty", bool(sampling.frequency_penalty)),
    )
    return next((f"{name}_unsupported" for name, wished in wishes if wished), None)


def same_name(told: str, asked: str) -> bool:
    """Return True if a server's word for a model is its name, up to how local servers write it.

    Ollama's names without a tag mean `:latest`; llama.cpp names a model without an alias by the path of its file.
    """
    if told.removesuffix(":latest") == asked.removesuffix(":latest"):
        return True
    file = WEIGHTS_FILE.fullmatch(told)
    if file is None or not (told.endswith(".gguf") or told.startswith(("/", "./"))):
        return False
    named = WEIGHTS_FILE.fullmatch(asked)
    return named is not None and file[1] == named[1]


def _efforts(model: str) -> frozenset[str]:
    if OPEN_WEIGHTS_MODEL.fullmatch(model):
        return frozenset({"low", "medium", "high"})
    family = REASONING_MODEL.fullmatch(model)
    if family is None:
        return frozenset()
    efforts = {"low", "medium", "high"}
    major, minor = int(family["major"] or 0), int(family["minor"] or 0)
    if (major, minor) == (5, 0):
        efforts |= {"minimal"}
    if (major, minor) >= (5, 1):
        efforts |= {"none"}
    if (major, minor) >= (5, 2):
        efforts |= {"xhigh"}
    if (major, minor) >= (5, 6):
        efforts |= {"max"}
    return frozenset(efforts)


def _within(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")
