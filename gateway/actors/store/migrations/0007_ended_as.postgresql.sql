-- What an operation has ended as, made of other columns.  An index over `state` made a step that changes nothing but the
-- state of an open operation write to every index of the table (no HOT update); this column changes once, at the end.
-- serves 2
DROP INDEX operations_state;
ALTER TABLE operations ADD COLUMN ended_as TEXT
    GENERATED ALWAYS AS (CASE WHEN ended_at IS NOT NULL THEN state END) STORED;
CREATE INDEX operations_ended_as ON operations (ended_as, operation_id) WHERE ended_as IS NOT NULL;
-- Room on the page of an operation for its next version.
ALTER TABLE operations SET (fillfactor = 50);
