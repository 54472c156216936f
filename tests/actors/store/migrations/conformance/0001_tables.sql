-- Tables of the conformance suite; a semicolon in a comment; ends nothing.
CREATE TABLE accounts (name TEXT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL CHECK (balance >= 0));
CREATE TABLE counters (name TEXT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);
CREATE TABLE parents (id BIGINT NOT NULL PRIMARY KEY);
CREATE TABLE children (id BIGINT NOT NULL PRIMARY KEY, parent BIGINT NOT NULL REFERENCES parents (id));
CREATE TABLE late_children (
    id BIGINT NOT NULL PRIMARY KEY,
    parent BIGINT NOT NULL REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED
);
