-- The audience: contacts with their properties, segments and topics, what they consented to, and imports of contacts.
-- depends: 0025_shared_names

-- One secret per account, encrypted (store/encryption). It keys the hashes in `unsubscribes` and signs the links in mail to contacts, so
-- it never changes.
CREATE TABLE audience_keys (
    account_id   uuid PRIMARY KEY,
    secret       bytea NOT NULL
);

-- A person that an account writes to. IDs increase with the time of creation, so that lists page by ID.
CREATE TABLE contacts (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    address      text COLLATE "C" NOT NULL,                   -- in lower case: what addresses are compared by
    email        text NOT NULL,                               -- as it was given
    first_name   text,
    last_name    text,
    unsubscribed boolean NOT NULL DEFAULT false,              -- from every broadcast, whatever the topics say
    untracked    boolean NOT NULL DEFAULT false,              -- objected to open and click tracking
    properties   jsonb NOT NULL DEFAULT '{}',                 -- values (strings and numbers) by contact_properties.number
    import_id    uuid,                                        -- the import that created it; null: none did
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    PRIMARY KEY (account_id, id)
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX contacts_address ON contacts (account_id, address);
CREATE INDEX contacts_unsubscribed ON contacts (account_id, id) WHERE unsubscribed;

-- Properties, segments and topics that were deleted keep their row until what refers to them is gone as well. Whoever writes such a
-- reference locks the row FOR KEY SHARE and checks deleted_at; whoever removes the row locks it FOR UPDATE first.

CREATE TABLE contact_properties (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY,         -- the key of its values in contacts.properties
    key          text COLLATE "C" NOT NULL,
    type         text NOT NULL CHECK (type IN ('string', 'number')),
    fallback     jsonb,                                       -- a value of the type; null: none
    created_at   timestamptz NOT NULL,
    deleted_at   timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX contact_properties_key ON contact_properties (account_id, key) WHERE deleted_at IS NULL;
CREATE INDEX contact_properties_deleted ON contact_properties (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE segments (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    name         text NOT NULL,
    confirmation jsonb,                                       -- wording of the double opt-in; null: contacts are added at once
    created_at   timestamptz NOT NULL,
    deleted_at   timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX segments_deleted ON segments (deleted_at) WHERE deleted_at IS NOT NULL;

-- The members of segments. The primary key is the order in which a broadcast goes through a segment.
CREATE TABLE contact_segments (
    account_id   uuid NOT NULL,
    segment_id   uuid NOT NULL,
    contact_id   uuid NOT NULL,
    added_at     timestamptz NOT NULL,
    PRIMARY KEY (account_id, segment_id, contact_id)
);
CREATE INDEX contact_segments_contact ON contact_segments (account_id, contact_id, segment_id);

CREATE TABLE topics (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    name         text NOT NULL,
    description  text,
    subscribed   boolean NOT NULL,                            -- what holds for contacts who made no choice
    public       boolean NOT NULL,                            -- on everybody's preference page; otherwise only on that of subscribers
    confirmation jsonb,                                       -- wording of the double opt-in; null: a choice counts at once
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    deleted_at   timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL;

-- The choices of contacts. A topic without a row here has the topic's default.
CREATE TABLE contact_topics (
    account_id   uuid NOT NULL,
    contact_id   uuid NOT NULL,
    topic_id     uuid NOT NULL,
    subscribed   boolean NOT NULL,
    changed_at   timestamptz NOT NULL,
    PRIMARY KEY (account_id, contact_id, topic_id)
);
CREATE INDEX contact_topics_topic ON contact_topics (account_id, topic_id, contact_id);

-- Who unsubscribed, by a keyed hash of the address. It outlives the contact and applies to addresses that are added or imported later.
CREATE TABLE unsubscribes (
    account_id   uuid NOT NULL,
    hash         bytea NOT NULL,                              -- HMAC-SHA-256 of the address in lower case
    topic_id     uuid NOT NULL,                               -- the nil UUID: from everything
    at           timestamptz NOT NULL,
    PRIMARY KEY (account_id, hash, topic_id)
);

-- Double opt-in: a contact was asked to confirm a segment or a topic. Until then nothing is in contact_segments or contact_topics.
CREATE TABLE confirmations (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    contact_id   uuid NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('segment', 'topic')),
    target_id    uuid NOT NULL,                               -- the segment or topic
    requested_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    email_id     uuid,                                        -- the mail that asked; null: it was not accepted yet
    retry_at     timestamptz,                                 -- when to send that mail; null: it was accepted, or refused for good
    confirmed_at timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX confirmations_target ON confirmations (account_id, contact_id, target_id);
CREATE INDEX confirmations_due ON confirmations (retry_at) WHERE retry_at IS NOT NULL;

-- Evidence of what people consented to and withdrew. It outlives the contact, without the address.
CREATE TABLE consents (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    hash         bytea NOT NULL,                              -- of the address, as in unsubscribes
    contact_id   uuid,
    email        text,                                        -- null once the contact is deleted
    kind         text NOT NULL CHECK (kind IN ('all', 'segment', 'topic')),
    target_id    uuid,                                        -- the segment or topic
    target_name  text,                                        -- its name at that time
    action       text NOT NULL CHECK (action IN ('requested', 'subscribed', 'unsubscribed')),
    source       text NOT NULL,                               -- api, dashboard, confirmation, preferences, one_click
    text_hash    bytea,                                       -- consent_texts: what the person was shown
    details      jsonb NOT NULL DEFAULT '{}',                 -- IP address, user agent, email ID, API key
    at           timestamptz NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX consents_hash ON consents (account_id, hash, id);

CREATE TABLE consent_texts (
    account_id   uuid NOT NULL,
    hash         bytea NOT NULL,                              -- SHA-256
    text         text NOT NULL,
    PRIMARY KEY (account_id, hash)
);

-- Imports of contacts from CSV files. A process that works on one holds a claim and renews it with every batch of rows that it commits.
CREATE TABLE contact_imports (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    status       text NOT NULL CHECK (status IN ('queued', 'in_progress', 'completed', 'failed')),
    settings     jsonb NOT NULL,                              -- columns, segments, topics, what to do with existing contacts
    bytes        bigint NOT NULL,
    position     bigint NOT NULL DEFAULT 0,                   -- bytes of the file whose rows are committed
    line         bigint NOT NULL DEFAULT 0,                   -- lines of the file in those bytes
    total        bigint NOT NULL DEFAULT 0,                   -- rows so far: the sum of the following
    created      bigint NOT NULL DEFAULT 0,
    updated      bigint NOT NULL DEFAULT 0,
    skipped      bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    reason       text,                                        -- why the whole import failed
    claim        uuid,                                        -- of the process that works on it
    claimed_until timestamptz,
    created_at   timestamptz NOT NULL,
    completed_at timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX contact_imports_open ON contact_imports (created_at) WHERE status IN ('queued', 'in_progress');
CREATE INDEX contact_imports_done ON contact_imports (completed_at) WHERE completed_at IS NOT NULL;

-- The uploaded file until the import is completed.
CREATE TABLE contact_import_chunks (
    account_id   uuid NOT NULL,
    import_id    uuid NOT NULL,
    number       integer NOT NULL,                            -- from 0; all chunks but the last have the same size
    data         bytea NOT NULL,
    PRIMARY KEY (account_id, import_id, number)
);
-- Citus has no such command; there, the data is compressed as usual.
DO $$
BEGIN
    ALTER TABLE contact_import_chunks ALTER COLUMN data SET STORAGE EXTERNAL;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;

CREATE TABLE contact_import_errors (
    account_id   uuid NOT NULL,
    import_id    uuid NOT NULL,
    line         bigint NOT NULL,                             -- where the row begins in the file, from 1
    reason       text NOT NULL,
    value        text NOT NULL,                               -- what is wrong
    PRIMARY KEY (account_id, import_id, line)
);
