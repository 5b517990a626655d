-- Messages that are stored compressed. The previous release cannot read them: database.compress is switched on after the upgrade.
-- depends: 0054_account_moves

ALTER TABLE emails ADD COLUMN compressed boolean;             -- whether the message is; null: it is not
