-- What refusals mean, and what comes back after the delivery.
-- depends: 0002_sandbox

ALTER TABLE attempts ADD COLUMN classes text[];              -- parallel to outcomes: what a refusal means, null: it was none
ALTER TABLE attempts ADD COLUMN rules text[];                -- parallel: the rule that says so (diagnosis.toml)
