-- Several nodes over one store: an operation belongs to the node whose lease in the engine's `nodes` is alive, and no
-- longer has a lease of its own.
DROP INDEX operations_open;
ALTER TABLE operations DROP COLUMN lease_until;
CREATE INDEX operations_open ON operations (node, operation_id) WHERE ended_at IS NULL;
CREATE INDEX operations_unsettled ON operations (payer) WHERE ended_at IS NULL AND payer IS NOT NULL;

-- Duties that one node at a time does for all: the holder is alive while it is joined under node_epoch.  epoch counts
-- the holders and fences what an earlier one would still write.
CREATE TABLE leases (
    name TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    node_epoch BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    taken_at BIGINT NOT NULL
);

-- What the last probe of a route found, whichever node looked; probed_at is by the store's clock.
CREATE TABLE findings (
    route TEXT NOT NULL,
    settings TEXT NOT NULL,
    node TEXT NOT NULL,
    probed_at BIGINT NOT NULL,
    took_ms BIGINT NOT NULL,
    finding TEXT NOT NULL,
    PRIMARY KEY (route, settings)
);
