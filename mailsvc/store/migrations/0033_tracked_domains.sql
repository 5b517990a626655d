-- Open and click tracking of sending domains.

ALTER TABLE domains
    ADD COLUMN open_tracking       boolean NOT NULL DEFAULT false,
    ADD COLUMN click_tracking      boolean NOT NULL DEFAULT false,
    ADD COLUMN tracking_subdomains text[] NOT NULL DEFAULT '{}';  -- labels; the last one is for new links, the others stay served
