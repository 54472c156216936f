"""The node's configuration: one TOML file, every key also as `GATEWAY_SECTION__KEY` (spec/operating, "Configuration").

An unknown key is an error that names it.  Secrets are file paths, never values; a relative path counts from the file
that names it, from the working directory where the environment does.  The sections stand in `config_sections`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from gateway.config_rules import SQLITE, broken_rules
from gateway.config_sections import (
    AiSection,
    Configuration,
    ModelRouteSection,
    NodeSection,
    PaymentSection,
    QuotaSection,
    SandboxSection,
    SearchAdapterSection,
    SearchSection,
    StoreSection,
    default_data_dir,
    shown_url,
)
from gateway.errors import Violation

__all__ = [
    "AiSection",
    "Configuration",
    "ConfigurationError",
    "ModelRouteSection",
    "NodeSection",
    "PaymentSection",
    "QuotaSection",
    "SandboxSection",
    "SearchAdapterSection",
    "SearchSection",
    "StoreSection",
    "default_data_dir",
    "load",
    "shown_url",
    "structure",
]

ENVIRONMENT_PREFIX = "GATEWAY_"
TABLE = re.compile(r"\s*(\[\[?)\s*([\w.\s-]+?)\s*\]")
KEY = re.compile(r"\s*([\w-]+)\s*=")
SECRET = re.compile(r"key|token|secret|password")


class ConfigurationError(Exception):
    """The configuration cannot be used; `violations` says where (a pointer into the file) and what to do."""

    def __init__(self, source: str, violations: list[Violation]) -> None:
        self.source = source
        self.violations = violations
        super().__init__("; ".join(f"{source} {each.pointer}: {each.detail}" for each in violations))


TABLES = (tuple[SearchAdapterSection, ...], tuple[ModelRouteSection, ...])
SECTIONS = {field.name for field in attrs.fields(Configuration)} - {"source"}


PATHS: Mapping[str, frozenset[str]] = {
    "node": frozenset({"data_dir", "keys_dir", "operator_token_file"}),
    "store": frozenset({"password_file"}),
    "sandbox": frozenset({"image"}),
}
"""The keys whose values are paths; those of adapters and routes and the store's URL are anchored apart."""


def load(path: Path | None, environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the file at `path` (none: defaults), overlay the environment, check everything.

    Raises `ConfigurationError` with every violation found.
    """
    environment = os.environ if environment is None else environment
    source = str(path) if path else "defaults"
    tree: dict[str, Any] = {}
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
            tree = tomllib.loads(text)
        except OSError as error:
            raise ConfigurationError(source, [Violation("", f"cannot be read: {error.strerror}")]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(source, [Violation("", f"is not TOML: {error}")]) from error
        _anchor(tree, path.absolute().parent)
    named: dict[str, str] = {}
    for variable, section, key, value in _overlay(environment):
        named[f"/{section}/{key}"] = variable
        members = tree.setdefault(section, {})
        if isinstance(members, dict):
            members[key] = value
    try:
        return structure(tree, source)
    except ConfigurationError as error:
        lines = lines_of(text)
        placed = [_with_line(_with_variable(each, named), lines, named) for each in error.violations]
        raise ConfigurationError(source, placed) from error


def structure(tree: Mapping[str, Any], source: str = "defaults") -> Configuration:
    """Structure and check a configuration tree; raises `ConfigurationError`."""
    shape = [Violation(f"/{name}", _unknown("section", name, SECTIONS)) for name in tree if name not in SECTIONS]
    shape += [
        Violation(f"/{name}", "must be a table")
        for name in tree
        if name in SECTIONS and not isinstance(tree[name], dict)
    ]
    if shape:
        raise ConfigurationError(source, shape)
    try:
        configuration = attrs.evolve(_CONVERTER.structure(tree, Configuration), source=source)
    except ClassValidationError as error:
        raise ConfigurationError(source, list(_violations(error, ""))) from error
    violations = broken_rules(configuration)
    if violations:
        raise ConfigurationError(source, violations)
    return configuration


def _anchor(tree: dict[str, Any], directory: Path) -> None:
    """Make the relative paths of a file count from its directory, and `~` the home directory."""

    def anchored(value: Any) -> Any:
        return str(directory / Path(value).expanduser()) if isinstance(value, str) and value else value

    for section, names in PATHS.items():
        members = tree.get(section)
        if isinstance(members, dict):
            members |= {name: anchored(members[name]) for name in names & members.keys()}
    store, search, ai = (tree.get(name) for name in ("store", "search", "ai"))
    if isinstance(store, dict):
        url = store.get("url")
        if isinstance(url, str) and url.startswith(SQLITE) and not url.startswith(SQLITE + "{data_dir}"):
            store["url"] = SQLITE + anchored(url.removeprefix(SQLITE))
    adapters = search.get("adapter") if isinstance(search, dict) else None
    routes = ai.get("route") if isinstance(ai, dict) else None
    for listed in (adapters, routes):
        for each in listed if isinstance(listed, list) else []:
            if isinstance(each, dict) and "key_file" in each:
                each["key_file"] = anchored(each["key_file"])


def _overlay(environment: Mapping[str, str]) -> list[tuple[str, str, str, Any]]:
    found = []
    for name, raw in sorted(environment.items()):
        section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if name.startswith(ENVIRONMENT_PREFIX) and separator:
            found.append((name, section, key, raw if _is_text(section, key) else _toml_value(raw)))
    return found


def _with_variable(violation: Violation, named: Mapping[str, str]) -> Violation:
    """Say which environment variable set the member that is at fault."""
    for pointer, variable in named.items():
        at, section = violation.pointer, pointer.rpartition("/")[0]
        if (
            at == pointer
            or at.startswith(f"{pointer}/")
            or (at == section and section.removeprefix("/") not in SECTIONS)
        ):
            return Violation(at, f"{violation.detail} ({variable})")
    return violation


def _with_line(violation: Violation, lines: Mapping[str, int], named: Mapping[str, str]) -> Violation:
    """Say in which line of the file the member stands, unless the environment set it."""
    line = lines.get(violation.pointer)
    if line is None or violation.pointer in named:
        return violation
    return Violation(violation.pointer, f"{violation.detail} (line {line})")


def lines_of(text: str) -> dict[str, int]:
    """Return where the tables and keys of a TOML file stand: the number of the line by the pointer.

    It is a hint for people: a key that is written in another way (quoted, dotted, in an inline table) has none.
    """
    found: dict[str, int] = {}
    listed: dict[str, int] = {}
    at = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := TABLE.match(line):
            at = "/" + "/".join(part.strip() for part in table[2].split("."))
            if table[1] == "[[":
                listed[at] = listed.get(at, -1) + 1
                at = f"{at}/{listed[at]}"
            found.setdefault(at, number)
        elif key := KEY.match(line):
            found.setdefault(f"{at}/{key[1]}", number)
    return found


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    """Say that nothing has this name, and what may be meant."""
    file = next((each for each in ("key_file", "password_file") if each in known), None)
    if file is not None and SECRET.search(name):
        return f"unknown {what}; a secret is the path of a file: {file}"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"unknown {what}" + (f"; did you mean {near[0]}?" if near else "")


def _is_text(section: str, key: str) -> bool:
    if section not in SECTIONS:
        return True
    fields = attrs.fields_dict(attrs.resolve_types(_section_class(section)))
    return key in fields and fields[key].type is str


def _section_class(section: str) -> type:
    kind = attrs.fields_dict(attrs.resolve_types(Configuration))[section].type
    if kind is None:
        raise TypeError(section)
    return kind


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _strict(kind: type) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"must be {kind.__name__}, not {type(value).__name__}")
        return value

    return hook


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (str, int, bool, float):
        converter.register_structure_hook(kind, _strict(kind))

    def texts(value: Any, _: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise TypeError('must be a list of strings; write ["one", "two"]')
        return tuple(value)

    def tables(value: Any, kind: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise TypeError("must be a list of tables")
        listed: Any = list.__class_getitem__((get_args(kind)[0],))  # cattrs tells the place of a faulty item in a list
        return tuple(converter.structure(value, listed))

    def flag(value: Any, _: Any) -> bool | None:
        if not isinstance(value, bool):
            raise TypeError(f"must be bool, not {type(value).__name__}")
        return value

    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], texts)
    converter.register_structure_hook_func(lambda kind: kind in TABLES, tables)
    converter.register_structure_hook_func(lambda kind: kind == bool | None, flag)
    return converter


_CONVERTER = _converter()


def _violations(error: BaseException, pointer: str) -> list[Violation]:
    found: list[Violation] = []
    if isinstance(error, ClassValidationError):
        noted, bare = error.group_exceptions()
        for inner, note in noted:
            found += _violations(inner, f"{pointer}/{note.name}")
        for inner in bare:
            found += _violations(inner, pointer)
    elif isinstance(error, IterableValidationError):
        indexed, bare = error.group_exceptions()
        for inner, place in indexed:
            found += _violations(inner, f"{pointer}/{place.index}")
        for inner in bare:
            found += _violations(inner, pointer)
    elif isinstance(error, ForbiddenExtraKeysError):
        known = {field.name for field in attrs.fields(error.cl)}
        found += [Violation(f"{pointer}/{name}", _unknown("key", name, known)) for name in sorted(error.extra_fields)]
    elif isinstance(error, KeyError):
        found.append(Violation(pointer, "is required"))
    else:
        found.append(Violation(pointer, str(error)))
    return found
