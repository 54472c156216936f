"""The layout of the project: which way imports run, and where the test of a module stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"
FLOORS = {"sandbox": 0, "registry": 1, "actors": 2, "http": 3, "world": 4}
"""A room may import its own floor's room and those beneath; errors is below all, node and cli above all but world."""
BELOW_ALL = {"errors"}
GROUND_FLOOR = ("registry", "sandbox")
GROUND_FLOOR_BANS = ("trio", "quart", "hypercorn", "httpx")


def modules(room: str) -> Iterator[Path]:
    yield from sorted((PACKAGE / room).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("room", FLOORS)
def test_imports_run_one_way(room: str) -> None:
    wrong = []
    for path in modules(room):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "gateway" or len(parts) == 1 or parts[1] in BELOW_ALL:
                continue
            other = parts[1]
            downward = other in FLOORS and (other == room or FLOORS[other] < FLOORS[room])
            if not downward and room != "world":
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("room", GROUND_FLOOR)
def test_the_ground_floor_knows_no_loop_and_no_http_framework(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imported(path)
        if name.split(".")[0] in GROUND_FLOOR_BANS
    ]
    assert wrong == []


def test_only_the_configuration_and_the_failpoints_read_the_environment() -> None:
    readers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "os.environ" in path.read_text() or "os.getenv" in path.read_text()
    }
    assert readers - {str(path.relative_to(PACKAGE)) for path in modules("world")} <= {
        "config.py",
        "config_sections.py",
        "actors/failpoints.py",
    }


def test_every_module_has_its_test_module() -> None:
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if path.name.startswith("__") or not _does_something(path):
            continue
        shared = [f"test_{parent.name}.py" for parent in [place.parent] if parent.name]
        expected = [ROOT / "tests" / place.parent / name for name in (f"test_{path.stem.lstrip('_')}.py", *shared)]
        if not any(each.exists() for each in expected):
            missing.append(str(place))
    assert missing == []


def _does_something(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.walk(tree))


def test_the_standard_library_keeps_its_http() -> None:
    import http.client

    assert "gateway" not in (http.client.__file__ or "")


def test_nothing_names_a_machine_or_a_registry_host() -> None:
    banned = ("/work" + "/", "registry.npm" + "js.org", "pypi" + ".org", "files.python" + "hosted")
    texts = [path for path in ROOT.rglob("*") if _is_own_text(path)]
    wrong = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in texts
        for word in banned
        if word in path.read_text(errors="ignore")
    ]
    assert wrong == []


def _is_own_text(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    hidden = any(
        part in {".venv", ".git", ".gateway", "node_modules", ".hypothesis"} or part.endswith("_cache")
        for part in parts
    )
    return (
        path.is_file()
        and not hidden
        and path.suffix in {".py", ".md", ".toml", ".txt", ".sh", ".json", ".mjs", ".yaml", ".sql", ""}
    )
