-- Images that were uploaded in the broadcast editor. The previous release does not look at them.
-- depends: 0047_broadcast_versions

CREATE TABLE images (
    account_id uuid NOT NULL,
    id         uuid NOT NULL,              -- it is in the image's address; its random part cannot be guessed
    hash       bytea NOT NULL,             -- SHA-256 of the content; an image that is uploaded again keeps its address
    kind       text NOT NULL CHECK (kind IN ('png', 'jpeg', 'gif', 'webp')),
    width      integer NOT NULL,
    height     integer NOT NULL,
    bytes      integer NOT NULL,
    created_at timestamptz NOT NULL,
    content    bytea NOT NULL,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, hash)
);
-- It is compressed already. Citus has no such command.
DO $$
BEGIN
    ALTER TABLE images ALTER COLUMN content SET STORAGE EXTERNAL;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;
