-- Several nodes count on one row: `taken` is what the last count got of what it asked for, so that one statement counts
-- and tells, on every engine.  Ended windows are swept by policy.
-- serves 2
ALTER TABLE quota_counters ADD COLUMN taken BIGINT NOT NULL DEFAULT 0;
CREATE INDEX quota_counters_ended ON quota_counters (quota, window_start);
