"""How fast a store moves to PostgreSQL, and in how much memory: 10^4 and 10^5 operations, fifteen rows each."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path

import attrs
import psycopg
import pytest

from gateway.world.postgresql import PostgresqlServer
from tests.moving.filled import fill
from tests.postgresql import GivenServer

pytestmark = pytest.mark.benchmark

SIZES = (10_000, 100_000)
MEMORY_MB = 40
"""What ten times the rows may cost more."""

CHILD = """
import resource, sys
from click.testing import CliRunner
from gateway.cli import main
told = CliRunner().invoke(main, sys.argv[1:])
assert told.exit_code == 0, told.output
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(told.stdout)
"""


@attrs.frozen
class Move:
    """What one move took; `rate` is rows a second while copying."""

    operations: int
    rows: int
    rate: float
    seconds: float
    memory_mb: float


def move(directory: Path, operations: int, url: str) -> Move:
    directory.mkdir()
    fill(directory / "gateway.db", operations, seed=operations)
    config = directory / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{directory}"\n')
    began = time.perf_counter()
    arguments = ["migrate", "--config", str(config), "--to", url, "--json"]
    child = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    memory, _, document = child.stdout.partition("\n")
    told = json.loads(document)
    rows = told["rowsCopied"]
    return Move(operations, rows, rows / told["seconds"], took, int(memory) / 1024)


def copied_plainly(url: str, rows: int = 200_000) -> float:
    """Rows a second of a bare COPY of short rows into a table with a text key: what the server does at best."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute('CREATE TABLE plain (k TEXT COLLATE "C" PRIMARY KEY, v TEXT)')
        began = time.perf_counter()
        with cursor.copy("COPY plain FROM STDIN") as copy:
            for number in range(rows):
                copy.write_row((f"{number:040d}", "v" * 60))
        connection.commit()
        took = time.perf_counter() - began
        connection.execute("DROP TABLE plain")
        return rows / took


def test_a_move_keeps_its_pace_and_its_memory(
    tmp_path: Path, postgresql_server: PostgresqlServer | GivenServer
) -> None:
    moves, floor = [], 0.0
    for operations in SIZES:
        name = f"bench_{secrets.token_hex(6)}"
        url = postgresql_server.create_database(name)
        try:
            floor = copied_plainly(url)
            moves.append(move(tmp_path / name, operations, url))
        finally:
            postgresql_server.drop_database(name)
    print(f"\nbare COPY of short rows: {floor:,.0f} rows/s")
    for each in moves:
        print(
            f"{each.operations:>7,} operations, {each.rows:>9,} rows: {each.rate:,.0f} rows/s copied"
            f" ({each.rate / floor:.2f} of bare), {each.seconds:.1f} s in all, {each.memory_mb:.0f} MB"
        )
    assert moves[-1].memory_mb < moves[0].memory_mb + MEMORY_MB
