"""The catalog of models: which ids exist, what each can do, where it is offered and at what price.

The rows stand in `catalog.json` beside this module, each fact of a model with its public source.  Canonical ids are
frozen: a release may add one, never change or drop one.  An alias is a promise of capabilities; which of its candidates
keeps it may change from call to call (`gateway.registry.ai.choice`).  What a row says is not what is served now: that
is proved by probes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

import attrs
import cattrs
import orjson
from cattrs.gen import make_dict_structure_fn, override
from cattrs.v import transform_error

Kind = Literal["canonical", "alias"]
Billing = Literal["free", "paid"]
Lifecycle = Literal["live", "preview", "deprecated", "retired"]
Capability = Literal["text", "json", "reasoning", "code", "transcription"]

MODEL_ID = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*")
VERSION = re.compile(r"(\d{4}-\d{2}-\d{2})\.\d+")
PRICE = re.compile(r"\d+\.\d{4}")


class CatalogError(ValueError):
    """The catalog's file is not what this release can sell by; each line names what is wrong."""


@attrs.frozen
class Rates:
    """What tokens cost on `ai.execute`, in USD micro-units (10**-6 USD) per million tokens.

    A prompt of more than `long_over` tokens costs `long_input_percent` and `long_output_percent` percent of the rates
    for all of its tokens and those of the answer; None: the length changes nothing.
    """

    input: int = attrs.field(validator=attrs.validators.gt(0))
    output: int = attrs.field(validator=attrs.validators.gt(0))
    long_over: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))
    long_input_percent: int = attrs.field(default=100, validator=attrs.validators.ge(100))
    long_output_percent: int = attrs.field(default=100, validator=attrs.validators.ge(100))


@attrs.frozen
class Model:
    """One row of the catalog.

    Attributes:
        id: `provider/name`, as callers write it.
        name: for people.
        candidates: of an alias, the canonical ids that may stand behind it, in the order in which they are tried.
        context_window: tokens of prompt and answer together; None: not known.
        billing: how a chat is paid for; None: the model has no price and no chat of it is sold.
        price: USD micro-units for a chat, whatever its length; 0 where it is free, None without `billing`.
        max_input_characters: Unicode code points of all messages of a chat together; None: bounded by the schema of the
            request and the size of its body only.
        max_output_tokens: of a chat, and of a free model on every operation.
        upstream_max_output: tokens that the model itself can answer with; None: not known.
        rates: by which `ai.execute` is priced; None where that is free or not offered.
        lifecycle: `live`, or `preview` (listed, never sold), `deprecated`, `retired`.
        operations: ids of the operations that it is offered on.
        source: the public place that the facts are taken from.
    """

    id: str
    name: str
    owned_by: str
    kind: Kind
    candidates: tuple[str, ...]
    capabilities: frozenset[str]
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    context_window: int | None
    billing: Billing | None
    price: int | None
    max_input_characters: int | None
    max_output_tokens: int | None
    upstream_max_output: int | None
    rates: Rates | None
    lifecycle: Lifecycle
    operations: tuple[str, ...]
    source: str | None


@attrs.frozen
class Catalog:
    """All rows by id, in the order in which they are listed."""

    version: str
    models: Mapping[str, Model] = attrs.field(repr=False)

    def get(self, model_id: str) -> Model | None:
        """Return the row of an id or alias, None where there is none."""
        return self.models.get(model_id)

    @property
    def canonical(self) -> tuple[Model, ...]:
        """The rows of the frozen ids."""
        return tuple(each for each in self.models.values() if each.kind == "canonical")

    @property
    def aliases(self) -> tuple[Model, ...]:
        """The rows of the aliases."""
        return tuple(each for each in self.models.values() if each.kind == "alias")

    def on(self, operation_id: str) -> tuple[Model, ...]:
        """Return the rows that are offered on an operation, open or not."""
        return tuple(each for each in self.models.values() if operation_id in each.operations)

    @property
    def created(self) -> int:
        """The day of the version, as seconds since 1970."""
        return int(datetime.fromisoformat(self.version.partition(".")[0]).replace(tzinfo=UTC).timestamp())


def load(content: bytes) -> Catalog:
    """Return the catalog that a file's content describes.

    Raises `CatalogError` for what is no such file, and for a row that contradicts itself or another.
    """
    try:
        read = _CONVERTER.structure(orjson.loads(content), _File)
    except orjson.JSONDecodeError as error:
        raise CatalogError(f"catalog: {error}") from error
    except Exception as error:
        raise CatalogError("\n".join(transform_error(error, "catalog"))) from error
    rows = [*(each.model("canonical") for each in read.models), *(each.model("alias") for each in read.aliases)]
    models = {each.id: each for each in rows}
    wrong = [f"{each.id}: {what}" for each in rows for what in _contradictions(each, models, rows)]
    if not VERSION.fullmatch(read.version):
        wrong.insert(0, f"version: {read.version!r} is no date and number")
    if wrong:
        raise CatalogError("\n".join(wrong))
    return Catalog(read.version, MappingProxyType(models))


@attrs.frozen
class _Row:
    """A model as the file writes it; absent members have the defaults of most rows."""

    id: str
    name: str
    capabilities: tuple[Capability, ...]
    context_window: int | None
    upstream_max_output: int | None
    lifecycle: Lifecycle
    source: str
    operations: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    billing: Billing | None = None
    price_usd: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.matches_re(PRICE))
    )
    max_input_characters: int | None = None
    max_output_tokens: int | None = None
    rates: Rates | None = None
    candidates: tuple[str, ...] = ()

    def model(self, kind: Kind) -> Model:
        price = None if self.price_usd is None else int(Decimal(self.price_usd).scaleb(6))
        return Model(
            id=self.id,
            name=self.name,
            owned_by=self.id.partition("/")[0],
            kind=kind,
            candidates=self.candidates,
            capabilities=frozenset(self.capabilities),
            input_modalities=self.input_modalities,
            output_modalities=self.output_modalities,
            context_window=self.context_window,
            billing=self.billing,
            price=0 if self.billing == "free" and price is None else price,
            max_input_characters=self.max_input_characters,
            max_output_tokens=self.max_output_tokens,
            upstream_max_output=self.upstream_max_output,
            rates=self.rates,
            lifecycle=self.lifecycle,
            operations=self.operations,
            source=self.source,
        )


@attrs.frozen
class _File:
    """`catalog.json`; `about` is for its readers."""

    version: str
    about: tuple[str, ...]
    models: tuple[_Row, ...]
    aliases: tuple[_Row, ...]


def _contradictions(model: Model, models: Mapping[str, Model], rows: Sequence[Model]) -> Iterator[str]:
    """Yield what no row may say, alone or beside the others."""
    if not MODEL_ID.fullmatch(model.id):
        yield "no id of the form provider/name"
    if sum(each.id == model.id for each in rows) > 1:
        yield "stands there twice"
    if (model.price is None) != (model.billing is None) or (model.price == 0) != (model.billing == "free"):
        yield "a price belongs to every paid row and to no other"
    if (model.rates is None) != (model.billing != "paid"):
        yield "rates belong to every paid row and to no other"
    if (model.max_output_tokens is None) != (model.billing is None):
        yield "a limit of output tokens belongs to every row with a price or a free slot and to no other"
    if (model.kind == "alias") != bool(model.candidates):
        yield "candidates belong to every alias and to no canonical id"
    for candidate in model.candidates:
        yield from _broken_promises(model, candidate, models.get(candidate))


def _broken_promises(alias: Model, candidate_id: str, candidate: Model | None) -> Iterator[str]:
    """Yield what an alias says that a candidate of it does not keep."""
    if candidate is None or candidate.kind != "canonical":
        yield f"the candidate {candidate_id} is no canonical id"
    elif candidate.billing != alias.billing:
        yield f"the candidate {candidate_id} is not billed as the alias is"
    elif not candidate.capabilities >= alias.capabilities:
        yield f"the candidate {candidate_id} lacks {', '.join(sorted(alias.capabilities - candidate.capabilities))}"


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for scalar in (str, int):
        converter.register_structure_hook(scalar, _strict)

    def structure(cls: type) -> Any:
        names = {each.name: override(rename=_camel(each.name)) for each in attrs.fields(cls)}
        return make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, **names)  # type: ignore[arg-type]  # overrides by name

    converter.register_structure_hook_factory(attrs.has, structure)
    return converter


def _strict(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


_CONVERTER = _converter()

CATALOG = load(files("gateway.registry.ai").joinpath("catalog.json").read_bytes())
"""The catalog of this release."""
