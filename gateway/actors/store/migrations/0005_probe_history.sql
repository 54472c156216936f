-- What became of each route, as each node saw it: a row for every spell of one state and reason within a bucket of
-- `width` milliseconds, of which it lasted `lasted_ms`; times are milliseconds since 1970, by the node's clock.
-- serves 2
CREATE TABLE probe_history (
    route TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    node TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    width BIGINT NOT NULL,
    lasted_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    qualification_id TEXT,
    probes BIGINT NOT NULL,
    failed_probes BIGINT NOT NULL,
    calls BIGINT NOT NULL,
    failed_calls BIGINT NOT NULL,
    p50_ms BIGINT,
    PRIMARY KEY (route, began_at, node)
);
CREATE INDEX probe_history_age ON probe_history (width, began_at);
