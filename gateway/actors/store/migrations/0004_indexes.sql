-- What is open is found in the order of its ids from an index that holds nothing else: for want of that order in it,
-- SQLite walked all operations there ever were.  node is in it so that what a node has open is counted without its rows.
-- serves 2
DROP INDEX operations_open;
CREATE INDEX operations_open ON operations (operation_id, node) WHERE ended_at IS NULL;
