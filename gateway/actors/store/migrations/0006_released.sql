-- The attempt that was let go of to run what must never run twice; the run may have begun once this is durable.
-- serves 2
ALTER TABLE operations ADD COLUMN released_attempt BIGINT;
