-- Broadcasts: their content, who gets them, and how far sending has come.
-- depends: 0031_reports

CREATE TABLE broadcasts (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    name         text NOT NULL,
    segment_id   uuid,                                        -- null: the segment was deleted
    topic_id     uuid,
    sender       text NOT NULL,                               -- From, as given
    reply_to     text[] NOT NULL,
    subject      text NOT NULL,
    preview_text text NOT NULL,
    html         text,
    text         text,                                        -- null: made from html when sending starts; '': no text part
    status       text NOT NULL CHECK (status IN ('draft', 'scheduled', 'queued', 'sent', 'canceled', 'failed')),
    hourly_rate  integer CHECK (hourly_rate > 0),             -- recipients per hour at most; null: no limit of its own
    created_at   timestamptz NOT NULL,
    scheduled_at timestamptz,
    sent_at      timestamptz,
    key_id       uuid,                                        -- the API key that sent it
    reason       text,                                        -- why it is paused, waits, failed or became a draft again; null: nothing of these
    -- What is fixed when sending starts, so that every attempt of an email sends the same bytes.
    started_at   timestamptz,
    domain_id    uuid,
    region       text,
    base_url     text,                                        -- the beginning of unsubscribe links
    fallbacks    jsonb,                                       -- {"key": "fallback" or null} of all contact properties
    numbers      jsonb,                                       -- {"key": "number in contacts.properties"} of those that the content uses
    total        bigint,                                      -- members of the segment
    -- How far it has come.
    position     uuid,                                        -- the last contact that was looked at; null: none
    passed       bigint NOT NULL DEFAULT 0,                   -- contacts that were looked at
    queued       bigint NOT NULL DEFAULT 0,                   -- emails that were made
    ended_at     timestamptz,                                 -- when the last contact was looked at
    paused_at    timestamptz,                                 -- null: it is not paused
    baseline     jsonb,                                       -- {"delivered", "bounced", "complained"} when somebody continued it; null: nobody did
    next_at      timestamptz,                                 -- when a process works on it next; null: none does
    PRIMARY KEY (account_id, id)
) WITH (fillfactor = 50);
CREATE INDEX broadcasts_due ON broadcasts (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX broadcasts_segment ON broadcasts (account_id, segment_id);
CREATE INDEX broadcasts_topic ON broadcasts (account_id, topic_id) WHERE topic_id IS NOT NULL;

-- Who got an email of a broadcast: each contact once.
CREATE TABLE broadcast_recipients (
    account_id   uuid NOT NULL,
    broadcast_id uuid NOT NULL,
    contact_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    marks        smallint NOT NULL DEFAULT 0,                 -- 1 bounced, 2 complained, 4 suppressed, 8 unsubscribed: the sum
    PRIMARY KEY (account_id, broadcast_id, contact_id)
);
CREATE INDEX broadcast_recipients_marked ON broadcast_recipients (account_id, broadcast_id, contact_id) WHERE marks <> 0;

-- Events of a broadcast's emails, counted by hour like those of `rollups`.
CREATE TABLE broadcast_counts (
    account_id   uuid NOT NULL,
    broadcast_id uuid NOT NULL,
    hour         timestamptz NOT NULL,
    type         text NOT NULL,
    count        bigint NOT NULL,
    PRIMARY KEY (account_id, broadcast_id, hour, type)
);

-- How an account's preference page looks, and how fast it sends broadcasts. No row: the defaults.
CREATE TABLE broadcast_settings (
    account_id   uuid PRIMARY KEY,
    title        text,
    message      text,
    logo         text,                                        -- https URL of an image
    colors       jsonb NOT NULL DEFAULT '{}',                 -- {"background", "text", "accent"}: #rrggbb
    hourly_rate  integer CHECK (hourly_rate > 0)              -- recipients of all broadcasts per hour; null: the setting's default
);

-- An email of a broadcast has no message: it is composed from the broadcast and the values of the contact at that time.
ALTER TABLE emails
    ADD COLUMN broadcast_id uuid,
    ADD COLUMN contact_id   uuid,
    ADD COLUMN merge        jsonb,                            -- the values of the contact that the content uses, by key
    ADD COLUMN topic_id     uuid;                             -- it is only for people who did not opt out of this topic

ALTER TABLE queue ADD COLUMN broadcast_id uuid;
CREATE INDEX queue_broadcast ON queue (account_id, broadcast_id) WHERE broadcast_id IS NOT NULL;
