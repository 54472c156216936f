"""The `ddgs` library (optional extra): it scrapes several engines, so blocks are to be expected.

The library is synchronous and reads pages of strangers, so it runs in a program of its own for each call
(`ddgs_worker`), which is killed when its time is up, and never in the node.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

import attrs

from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost, WorkerCall, json_object
from gateway.registry.search.page import SearchPage, blocked, collect, failed
from gateway.registry.search.plain_query import BANGS, plain_query
from gateway.registry.search.request import SearchRequest

FIELDS = {"title": "title", "url": "href", "snippet": "body"}
WORKER = (sys.executable, "-I", "-m", "gateway.registry.search.ddgs_worker")

# The library's `country-language` codes, for the pairs whose codes are ISO's own; Great Britain is `uk` there.
CODES = {
    ("de", "AT"): "at-de", ("en", "AU"): "au-en", ("fr", "BE"): "be-fr", ("nl", "BE"): "be-nl", ("bg", "BG"): "bg-bg",
    ("pt", "BR"): "br-pt", ("en", "CA"): "ca-en", ("fr", "CA"): "ca-fr", ("de", "CH"): "ch-de", ("fr", "CH"): "ch-fr",
    ("it", "CH"): "ch-it", ("es", "CL"): "cl-es", ("es", "CO"): "co-es", ("cs", "CZ"): "cz-cs", ("de", "DE"): "de-de",
    ("da", "DK"): "dk-da", ("et", "EE"): "ee-et", ("es", "ES"): "es-es", ("fi", "FI"): "fi-fi", ("fr", "FR"): "fr-fr",
    ("en", "GB"): "uk-en", ("el", "GR"): "gr-el", ("hr", "HR"): "hr-hr", ("hu", "HU"): "hu-hu", ("en", "IE"): "ie-en",
    ("he", "IL"): "il-he", ("en", "IN"): "in-en", ("it", "IT"): "it-it", ("lt", "LT"): "lt-lt", ("lv", "LV"): "lv-lv",
    ("es", "MX"): "mx-es", ("nl", "NL"): "nl-nl", ("en", "NZ"): "nz-en", ("es", "PE"): "pe-es", ("en", "PH"): "ph-en",
    ("pl", "PL"): "pl-pl", ("pt", "PT"): "pt-pt", ("ro", "RO"): "ro-ro", ("ru", "RU"): "ru-ru", ("sv", "SE"): "se-sv",
    ("en", "SG"): "sg-en", ("sk", "SK"): "sk-sk", ("th", "TH"): "th-th", ("tr", "TR"): "tr-tr", ("uk", "UA"): "ua-uk",
    ("en", "US"): "us-en", ("es", "VE"): "ve-es", ("vi", "VN"): "vn-vi", ("en", "ZA"): "za-en",
}  # fmt: skip

CAPABILITIES = Capabilities(
    languages=frozenset(language for language, _ in CODES),
    regions=frozenset(region for _, region in CODES),
    locales=frozenset(CODES),
    max_query_chars=500,
)
COST = Cost()


@attrs.frozen
class DdgsAdapter:
    """Runs the library in a worker; `installed` says whether the extra is there."""

    name: str
    cost: Cost = COST
    simulated: bool = False
    worker: tuple[str, ...] = WORKER
    installed: bool = attrs.field(factory=lambda: importlib.util.find_spec("ddgs") is not None)
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["ddgs"] = attrs.field(default="ddgs", init=False)
    coverage: Literal["web"] = attrs.field(default="web", init=False)

    def plan(self, request: SearchRequest) -> WorkerCall:
        """Return the worker's run."""
        language = self.capabilities.language_of(request) or ""
        task = {
            "query": plain_query(request.query, BANGS),
            "region": CODES[language, request.region],
            "max_results": request.max_results,
        }
        return WorkerCall(self.worker, json.dumps(task).encode(), target=self.name)

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read the worker's answer; the library cannot tell empty from blocked, so neither is a result."""
        body: dict[str, Any] = json_object(self.name, answer)
        match body.get("error"):
            case None:
                return SearchPage(collect(self.name, body.get("results"), FIELDS, limit=request.max_results))
            case "rate_limited":
                raise blocked(self.name, "rate_limited", "the engines limit this node")
            case "no_results":
                raise blocked(self.name, "no_results", "the engines gave nothing to read")
            case "timed_out":
                raise failed(self.name, "timeout", "the engines did not answer in time")
        raise failed(self.name, "worker_failed", "the library failed")

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return nothing: a search is the only proof, and engines block those who ask too often."""
        return ()

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:  # noqa: ARG002 - there are none
        """Judge by whether the extra is installed."""
        if not self.installed:
            return Finding(ok=False, reason="extra_not_installed", basis="configuration")
        return Finding(ok=True, basis="configuration")
