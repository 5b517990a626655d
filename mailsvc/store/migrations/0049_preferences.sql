-- What somebody prefers on the pages of the dashboard. The previous release does not look at it.
-- depends: 0048_images

ALTER TABLE users
    ADD COLUMN time_zone text NOT NULL DEFAULT '',            -- an IANA name; empty: not known yet, pages show UTC
    ADD COLUMN shortcuts boolean NOT NULL DEFAULT true;       -- whether single keys are shortcuts
