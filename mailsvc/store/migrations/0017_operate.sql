-- What an operator has to know of a database and of the processes that use it: where it was written, what it needs, who knows which keys.
-- depends: 0009_lanes 0010_dashboard

ALTER TABLE processes
    ADD COLUMN version   text,                                -- of the release that runs; null: one from before this column
    ADD COLUMN seal_keys text[];                              -- what it seals and opens with, the one that seals first: number and fingerprint

-- One row: the database itself. The place is where this row was last used; a copy that was restored from a dump is in another one.
CREATE TABLE house (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    system       text,                                        -- the system identifier of the cluster; null: not used yet
    database     bigint,                                      -- pg_database.oid
    relation     bigint,                                      -- pg_class.oid of this table
    timeline     integer,                                     -- of the write-ahead log; a recovery and a failover begin a new one
    needs        text                                         -- the newest migration that a release must know; null: every release may use it
);
INSERT INTO house DEFAULT VALUES;

-- As before, and a hold of '*' counts for every destination of its region. What else the function says is not looked at here.
DO $$
DECLARE
    before constant text := 'h.name IN (q.destination, split_part(q.destination, ''/'', 1))';
    after  constant text := 'h.name IN (q.destination, split_part(q.destination, ''/'', 1), ''*'')';
    body   constant text := pg_get_functiondef('waiting_at(timestamptz)'::regprocedure);
BEGIN
    IF position(before IN body) = 0 THEN
        RAISE EXCEPTION 'waiting_at does not look at holds as it did';
    END IF;
    EXECUTE replace(body, before, after);
END
$$;
