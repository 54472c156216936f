-- Facts that every node of this store must agree on, such as the fingerprints of its peppers.
CREATE TABLE node_facts (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- One row an operation, from its claim on.  Times are milliseconds since 1970; amounts are atomic units.
-- sealed_* are AES-256-GCM under the data key of the operation; node_wrap is that key under the node key while the operation is open.
CREATE TABLE operations (
    operation_id TEXT NOT NULL PRIMARY KEY,
    operation TEXT NOT NULL,
    state TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    node TEXT NOT NULL,
    lease_until BIGINT NOT NULL,
    funding TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    sealed_request BLOB NOT NULL,
    node_wrap BLOB,
    quote_id TEXT,
    price_version TEXT,
    network TEXT,
    asset TEXT,
    amount BIGINT NOT NULL,
    pay_to TEXT,
    protocol TEXT,
    payer TEXT,
    nonce TEXT,
    valid_before BIGINT,
    challenge_id TEXT,
    sealed_payment BLOB,
    look_from_block BIGINT,
    sealed_output BLOB,
    result_hash TEXT,
    route TEXT,
    settlement TEXT NOT NULL,
    transaction_hash TEXT,
    block_number BIGINT,
    block_hash TEXT,
    receipt TEXT,
    failure_code TEXT,
    failure_detail TEXT,
    claimed_at BIGINT NOT NULL,
    executed_at BIGINT,
    ended_at BIGINT,
    output_until BIGINT,
    tombstone_until BIGINT
);

CREATE INDEX operations_open ON operations (lease_until) WHERE ended_at IS NULL;
CREATE INDEX operations_ended ON operations (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX operations_state ON operations (state, operation_id);
CREATE INDEX operations_stuck ON operations (operation_id) WHERE failure_code = 'operator_needed';
CREATE INDEX operations_output ON operations (output_until) WHERE output_until IS NOT NULL;
CREATE INDEX operations_tombstone ON operations (tombstone_until) WHERE tombstone_until IS NOT NULL;

-- What happened to an operation, in order; the states between two durable steps are told here with their times.
CREATE TABLE operation_events (
    operation_id TEXT NOT NULL,
    step BIGINT NOT NULL,
    state TEXT NOT NULL,
    at BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    note TEXT,
    PRIMARY KEY (operation_id, step)
);

-- The names of an operation: the HMAC of a caller's key (or of its payment-identifier) and the request it was used for.
-- key_wrap is the operation's data key under (pepper, key).
CREATE TABLE idempotency_keys (
    key_hmac TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    pepper BIGINT NOT NULL,
    key_wrap BLOB,
    PRIMARY KEY (key_hmac, request_hash)
);

CREATE INDEX idempotency_keys_operation ON idempotency_keys (operation_id);

-- Who used a key: the same caller's reuse for another request is a conflict.
CREATE TABLE idempotency_callers (
    key_hmac TEXT NOT NULL,
    caller TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    PRIMARY KEY (key_hmac, caller)
);

CREATE INDEX idempotency_callers_operation ON idempotency_callers (operation_id);

-- One authorization, one operation.
CREATE TABLE authorizations (
    chain_id BIGINT NOT NULL,
    asset TEXT NOT NULL,
    authorizer TEXT NOT NULL,
    nonce TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    claimed_at BIGINT NOT NULL,
    valid_before BIGINT NOT NULL,
    PRIMARY KEY (chain_id, asset, authorizer, nonce)
);

CREATE INDEX authorizations_operation ON authorizations (operation_id);

-- A payer whose payment failed after its result was made waits until hold_until.
CREATE TABLE payer_holds (
    payer TEXT NOT NULL PRIMARY KEY,
    hold_until BIGINT NOT NULL,
    operation_id TEXT NOT NULL
);

-- Double entry, append only: the entries of one (operation, step) sum to zero an asset.  height names the sealing block.
CREATE TABLE ledger_entries (
    entry_id TEXT NOT NULL PRIMARY KEY,
    operation_id TEXT NOT NULL,
    step TEXT NOT NULL,
    account TEXT NOT NULL,
    network TEXT NOT NULL,
    asset TEXT NOT NULL,
    amount BIGINT NOT NULL,
    posted_at BIGINT NOT NULL,
    entry_hash TEXT NOT NULL,
    height BIGINT
);

CREATE INDEX ledger_entries_unsealed ON ledger_entries (posted_at) WHERE height IS NULL;
CREATE INDEX ledger_entries_height ON ledger_entries (height, entry_id) WHERE height IS NOT NULL;
CREATE INDEX ledger_entries_operation ON ledger_entries (operation_id);

-- The hash chain: each block seals entries under the hash of the block before it.
CREATE TABLE ledger_blocks (
    height BIGINT NOT NULL PRIMARY KEY,
    previous_hash TEXT NOT NULL,
    block_hash TEXT NOT NULL,
    entries BIGINT NOT NULL,
    sealed_at BIGINT NOT NULL,
    signature TEXT NOT NULL
);

-- Calls of a caller in its current window, flushed from memory.
CREATE TABLE quota_counters (
    quota TEXT NOT NULL,
    caller TEXT NOT NULL,
    window_start BIGINT NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (quota, caller)
);

CREATE INDEX quota_counters_window ON quota_counters (window_start);
