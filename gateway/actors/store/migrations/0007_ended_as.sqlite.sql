-- What an operation has ended as, made of other columns: an index over `state` was written at every step.
-- serves 2
DROP INDEX operations_state;
ALTER TABLE operations ADD COLUMN ended_as TEXT
    GENERATED ALWAYS AS (CASE WHEN ended_at IS NOT NULL THEN state END) VIRTUAL;
CREATE INDEX operations_ended_as ON operations (ended_as, operation_id) WHERE ended_as IS NOT NULL;
