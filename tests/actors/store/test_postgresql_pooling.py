from __future__ import annotations

from functools import partial

import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, StoreRefused, open_postgresql
from gateway.actors.store.postgresql_pooling import LOOK, require_session
from gateway.doctor._server import sessions
from gateway.doctor._server_seen import look
from tests.actors.store.postgresql_parts import road, run
from tests.actors.store.transaction_pooler import pooled


async def test_a_server_itself_gives_each_connection_a_session(postgresql_url: str) -> None:
    connection = await road(postgresql_url).connect()
    await require_session(connection, road(postgresql_url), "here", within=5)
    assert await run(connection, LOOK) == [[(None,)]]
    connection.close()
    assert sessions(look(PostgresqlSettings(postgresql_url), "node-1")) == []


async def test_a_pooler_that_gives_transactions_to_other_sessions_is_refused_at_the_start(postgresql_url: str) -> None:
    async with pooled(postgresql_url) as url:
        settings = PostgresqlSettings(url, connect_timeout_s=5)
        with (
            trio.fail_after(30),
            pytest.RaisesGroup(
                pytest.RaisesExc(StoreRefused, match=r"does not keep sessions.*pool_mode = session"),
                allow_unwrapped=True,
            ),
        ):
            async with open_runtime() as runtime, open_postgresql(runtime, settings, node="node-1"):
                raise AssertionError


async def test_the_doctor_finds_it(postgresql_url: str) -> None:
    async with pooled(postgresql_url) as url:
        seen = await trio.to_thread.run_sync(partial(look, PostgresqlSettings(url), "node-1"))
    (check,) = sessions(seen)
    assert check.standing == "failed"
    assert "pool_mode = session" in check.fix
