-- How long accounts keep what is theirs.
-- depends: 0010_dashboard

ALTER TABLE accounts ADD COLUMN retention jsonb;              -- {"bodies": 7, …} in days, shorter than the settings; null: as they say
