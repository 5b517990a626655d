-- Open and click tracking: how often emails were opened, and their links followed. Each open and click is an event, too.
-- depends: 0033_tracked_domains

-- broadcast_recipients.marks has two more values: 16 opened, 32 clicked.

-- `people`: those that were not made by a program (mail/tracking/machine).
CREATE TABLE hits (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('opened', 'clicked', 'link')),  -- the email was opened, any link was followed, one link was
    target       uuid NOT NULL,                               -- the hash of the link's URL; of the others 0
    url          text,                                        -- of the link
    count        integer NOT NULL,
    people       integer NOT NULL,
    first_at     timestamptz NOT NULL,
    people_at    timestamptz,                                 -- the first by a person
    PRIMARY KEY (account_id, email_id, kind, target)
) PARTITION BY RANGE (email_id);

-- The links of a broadcast that were followed, and by how many recipients (unique).
CREATE TABLE broadcast_links (
    account_id   uuid NOT NULL,
    broadcast_id uuid NOT NULL,
    target       uuid NOT NULL,                               -- the hash of the URL
    url          text NOT NULL,
    clicks       bigint NOT NULL,
    unique_clicks bigint NOT NULL,
    people_clicks bigint NOT NULL,                            -- those that were not made by a program
    unique_people bigint NOT NULL,
    PRIMARY KEY (account_id, broadcast_id, target)
);
CREATE INDEX broadcast_links_clicks ON broadcast_links (account_id, broadcast_id, clicks, target);
CREATE INDEX domains_tracking ON domains (id) WHERE tracking_subdomains <> '{}';
