-- The audit log becomes a hash chain per account; actor, address and subject move to a table in which they can be erased.
-- depends: 0035_tracked_broadcasts

-- What the chain commits to instead of the texts: SHA-256 of salt and text. `actor`, `address` and `subject` are '' in chained lines.
-- store/audit/chain.py has the formula. A line without `hash` is not in the chain: a process of an older release wrote it.
ALTER TABLE audit
    ADD COLUMN seq          bigint,                           -- 1 for the first line of the account
    ADD COLUMN kind         text,                             -- member, key, operator, service or visitor
    ADD COLUMN actor_hash   bytea,
    ADD COLUMN address_hash bytea,
    ADD COLUMN subject_hash bytea,
    ADD COLUMN hash         bytea;                            -- SHA-256 of the previous line's hash and this line's digest

-- Salts and texts. Erasing one sets its salt and text to null.
CREATE TABLE audit_details (
    account_id    uuid NOT NULL,
    id            uuid NOT NULL,                              -- the line
    actor         text,
    actor_salt    bytea,
    address       text,
    address_salt  bytea,
    subject       text,
    subject_salt  bytea,
    PRIMARY KEY (account_id, id)
);

-- The last line of each account's chain. Its row is locked from the last statement of a transaction until the commit.
CREATE TABLE audit_heads (
    account_id    uuid PRIMARY KEY,
    seq           bigint NOT NULL,
    hash          bytea NOT NULL,
    anchored      bigint NOT NULL DEFAULT 0                   -- the last line that a signed anchor covers
) WITH (fillfactor = 50);

-- Signed statements of how far the chains had come. `body` is JSON (store/audit/anchors.py), with the hash of the previous anchor.
CREATE TABLE audit_anchors (
    number        bigint PRIMARY KEY,
    at            timestamptz NOT NULL,
    body          text NOT NULL,
    signature     bytea NOT NULL
);

-- How far the audit log has been sent to each destination outside, and which process sends it.
CREATE TABLE audit_targets (
    name          text PRIMARY KEY,
    holder        uuid,                                       -- the process
    until         timestamptz,                                -- when another process may take over
    anchor        bigint NOT NULL DEFAULT 0                   -- the last anchor that was sent
);
CREATE TABLE audit_sent (
    account_id    uuid NOT NULL,
    target        text NOT NULL,
    seq           bigint NOT NULL,                            -- the last line that was sent
    PRIMARY KEY (account_id, target)
);

-- As before, except that a line that is not in the chain can be put into it, once.
CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.hash IS NULL AND NEW.hash IS NOT NULL AND OLD.account_id = NEW.account_id AND OLD.id = NEW.id THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'The audit log is append-only.';
END
$$;

-- The existing lines become the beginning of the chains.
DO $$
DECLARE
    line   record;
    salts  bytea[];
    owner  uuid;
    number bigint := 0;
    head   bytea;
BEGIN
    FOR line IN SELECT * FROM audit ORDER BY account_id, id LOOP
        IF owner IS DISTINCT FROM line.account_id THEN
            owner := line.account_id;
            number := 0;
            head := sha256('mailsvc audit'::bytea || uuid_send(owner));
        END IF;
        number := number + 1;
        salts := ARRAY[uuid_send(gen_random_uuid()), uuid_send(gen_random_uuid()), uuid_send(gen_random_uuid())];
        line.kind := CASE
            WHEN line.user_id IS NOT NULL THEN 'member'
            WHEN left(line.actor, 8) = 'API key ' THEN 'key'
            WHEN line.actor = 'the operator' THEN 'operator'
            WHEN line.actor = 'mailsvc' THEN 'service'
            ELSE 'visitor'
        END;
        INSERT INTO audit_details VALUES
            (owner, line.id, line.actor, salts[1], line.address, salts[2], line.subject, salts[3]);
        line.actor_hash := sha256(salts[1] || convert_to(line.actor, 'UTF8'));
        line.address_hash := sha256(salts[2] || convert_to(line.address, 'UTF8'));
        line.subject_hash := sha256(salts[3] || convert_to(line.subject, 'UTF8'));
        head := sha256(head || sha256(
            'mailsvc audit 1'::bytea || uuid_send(owner) || uuid_send(line.id)
            || int8send((extract(epoch FROM line.at) * 1000000)::bigint)
            || coalesce(uuid_send(line.user_id), decode(repeat('00', 16), 'hex'))
            || sha256(convert_to(line.kind, 'UTF8')) || sha256(convert_to(line.action, 'UTF8'))
            || line.actor_hash || line.address_hash || line.subject_hash
        ));
        UPDATE audit
        SET seq = number, kind = line.kind, actor = '', address = '', subject = '', hash = head,
            actor_hash = line.actor_hash, address_hash = line.address_hash, subject_hash = line.subject_hash
        WHERE account_id = owner AND id = line.id;
        INSERT INTO audit_heads (account_id, seq, hash) VALUES (owner, number, head)
        ON CONFLICT (account_id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash;
    END LOOP;
END
$$;

CREATE UNIQUE INDEX audit_seq ON audit (account_id, seq);

-- What people read: the texts where they are, and null where they were erased.
CREATE VIEW audit_entries AS
SELECT a.account_id, a.id, a.seq, a.at, a.user_id, a.kind, a.action, a.hash,
       CASE WHEN a.hash IS NULL THEN a.actor ELSE d.actor END AS actor,
       CASE WHEN a.hash IS NULL THEN a.address ELSE d.address END AS address,
       CASE WHEN a.hash IS NULL THEN a.subject ELSE d.subject END AS subject
FROM audit a LEFT JOIN audit_details d ON d.account_id = a.account_id AND d.id = a.id;
