-- How far the database has come, to know a copy that has gone back: store/whereabouts.
-- depends: 0017_operate

ALTER TABLE house ADD COLUMN beats bigint NOT NULL DEFAULT 0; -- grows every ten seconds; whoever saw a greater number knows that something is missing
