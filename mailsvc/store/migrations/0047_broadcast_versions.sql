-- Earlier versions of drafts, and what the editor needs to open the current one. The previous release does not look at it.
-- depends: 0046_problems

CREATE TABLE broadcast_versions (
    account_id   uuid NOT NULL,
    broadcast_id uuid NOT NULL,
    version      integer NOT NULL,                            -- the newest is what the broadcast has, unless the API changed that since
    begun_at     timestamptz NOT NULL,                        -- saves of the same person within a minute are one version
    saved_at     timestamptz NOT NULL,
    author       text,                                        -- the address of the member; null: it came through the API
    editor       text NOT NULL CHECK (editor IN ('react-email/1', 'html')),
    document     text,                                        -- what the editor opens (JSON); null: written as HTML
    settings     jsonb NOT NULL,                              -- {"name", "segment_id", "topic_id", "sender", "reply_to", "subject", "preview_text"}
    html         text,
    text         text,
    PRIMARY KEY (account_id, broadcast_id, version),
    FOREIGN KEY (account_id, broadcast_id) REFERENCES broadcasts ON DELETE CASCADE
);
