-- The own address that an attempt was made from, for `mailsvc explain`.
-- depends: 0026_audience

ALTER TABLE attempts ADD COLUMN source text;                  -- null: the system chose it, or a release from before this column
