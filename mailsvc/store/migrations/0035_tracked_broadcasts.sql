-- Open and click tracking of broadcasts. It is fixed before the first attempt, so that every attempt of an email sends the same bytes.
-- depends: 0034_hits

ALTER TABLE broadcasts ADD COLUMN tracking jsonb;             -- {"host", "opens", "clicks", "key"}: from the start of sending; null: nothing is tracked
ALTER TABLE emails ADD COLUMN untracked boolean;              -- true: an email of a broadcast to somebody who must not be tracked
