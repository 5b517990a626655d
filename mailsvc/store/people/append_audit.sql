-- The only statement that locks a chain's head, and the last one of its transaction.
WITH head AS (
    INSERT INTO audit_heads AS h (account_id, seq, hash)
    VALUES (%(account_id)s, 1, sha256(%(start)s::bytea || %(digest)s::bytea))
    ON CONFLICT (account_id) DO UPDATE SET seq = h.seq + 1, hash = sha256(h.hash || %(digest)s::bytea)
    RETURNING seq, hash
), details AS (
    INSERT INTO audit_details (account_id, id, actor, actor_salt, address, address_salt, subject, subject_salt)
    VALUES (
        %(account_id)s, %(id)s, %(actor)s, %(actor_salt)s, %(address)s, %(address_salt)s, %(subject)s, %(subject_salt)s
    )
)
INSERT INTO audit (
    account_id, id, at, user_id, kind, action, actor, address, subject, actor_hash, address_hash, subject_hash, seq, hash
)
SELECT %(account_id)s, %(id)s, %(at)s, %(user_id)s, %(kind)s, %(action)s, '', '', '',
       %(actor_hash)s, %(address_hash)s, %(subject_hash)s, head.seq, head.hash
FROM head
