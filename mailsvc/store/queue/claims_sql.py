"""The statements of the queue. What they are for and who calls them: store/queue/claims."""

from __future__ import annotations

from mailsvc.store.postgres.prepared import Prepared

# Estimates of a table that swings between empty and millions of rows are never right, and a wrong plan here reads it whole.
# IS NOT DISTINCT FROM is an equality that no index serves, and a lease looked at through coalesce is none that a partial index
# knows: the row is to be found by its key, and only then compared.
_WITHOUT = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
BY_INDEX = "".join(f"SET LOCAL {way} = off; " for way in _WITHOUT)
# The same ahead of a prepared statement: a plan that is made anew obeys it. ONCE is for statements that leave nothing to choose: they are
# planned once, not five times and then compared.
_BY_INDEX = ", ".join(f"set_config('{way}', 'off', true)" for way in _WITHOUT)
ONCE = "set_config('plan_cache_mode', 'force_generic_plan', true)"
PLAN_BY_INDEX = Prepared("by_index", (), f"SELECT {_BY_INDEX}")
PLAN_ONCE_BY_INDEX = Prepared("once_by_index", (), f"SELECT {_BY_INDEX}, {ONCE}")

# A loose index scan: from each destination straight to the next one, however many rows wait for it.
READY = """
WITH RECURSIVE walk (destination, passed) AS (
    (SELECT destination, 1 FROM queue
     WHERE region = %(region)s AND lease IS NULL AND status <> 'scheduled' AND destination > %(start)s
     ORDER BY destination LIMIT 1)
    UNION ALL
    SELECT (SELECT q.destination FROM queue q
            WHERE q.region = %(region)s AND q.lease IS NULL AND q.status <> 'scheduled' AND q.destination > w.destination
            ORDER BY q.destination LIMIT 1),
           w.passed + 1
    FROM walk w WHERE w.destination IS NOT NULL AND w.passed < %(walk)s
), heads AS (
    SELECT w.destination,
           (SELECT q.next_at FROM queue q WHERE q.region = %(region)s AND q.destination = w.destination AND NOT q.bulk
            AND q.lease IS NULL AND q.status <> 'scheduled' ORDER BY q.next_at LIMIT 1) AS transactional_at,
           (SELECT q.next_at FROM queue q WHERE q.region = %(region)s AND q.destination = w.destination AND q.bulk
            AND q.lease IS NULL AND q.status <> 'scheduled' ORDER BY q.next_at LIMIT 1) AS bulk_at
    FROM walk w
    WHERE w.destination IS NOT NULL AND w.destination <> ALL (%(skip)s::text[])
    AND NOT EXISTS (SELECT FROM destinations d WHERE d.region = %(region)s AND d.until > %(now)s
                    AND d.name IN (w.destination, split_part(w.destination, '/', 1), '*'))
)
(SELECT destination,
        CASE WHEN transactional_at <= %(now)s THEN false WHEN bulk_at <= %(now)s THEN true
             ELSE coalesce(bulk_at < transactional_at, transactional_at IS NULL) END,
        least(transactional_at, bulk_at)
 FROM heads ORDER BY 3 LIMIT %(limit)s)
UNION ALL
SELECT max(destination), NULL, NULL FROM walk WHERE passed = %(walk)s -- where it stopped before the end
"""

_DUE = """SELECT * FROM (
                SELECT ctid, email_id FROM queue
                WHERE region = %(region)s AND destination = a.destination AND {kind} AND lease IS NULL AND status <> 'scheduled'
                AND next_at <= %(now)s
                ORDER BY next_at LIMIT a.most FOR UPDATE SKIP LOCKED
            ) {name}"""

# A plan that was made over an empty table must do over a full one. So nothing is left to choose: each email's others are looked up by
# its id, and what is locked is found by where it stands. What was changed meanwhile stands elsewhere, and waits for the next claim.
# Who claims a first attempt needs the message next; it comes along when all would fit in, were they all as long.
CLAIM = f"""
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(destinations)s::text[], %(limits)s::bigint[]) AS a(destination, most)
), chosen AS MATERIALIZED (
    SELECT d.ctid, d.email_id, a.destination FROM asked a CROSS JOIN LATERAL (
        SELECT * FROM (
            {_DUE.format(kind="NOT bulk", name="urgent")}
            UNION ALL
            {_DUE.format(kind="bulk", name="patient")}
        ) due LIMIT a.most
    ) d
), along AS MATERIALIZED (
    SELECT a.ctid FROM (SELECT DISTINCT email_id, destination FROM chosen) c CROSS JOIN LATERAL (
        SELECT q.ctid FROM queue q
        WHERE q.email_id = c.email_id AND q.region IS NOT DISTINCT FROM %(region)s AND q.destination IS NOT DISTINCT FROM c.destination
        AND coalesce(q.lease, -1) = -1 AND q.status <> 'scheduled' AND q.next_at <= %(now)s
        FOR UPDATE SKIP LOCKED
    ) a
), leased AS (
    UPDATE queue q SET lease = %(lease)s
    WHERE q.ctid = ANY (ARRAY(SELECT ctid FROM chosen UNION SELECT ctid FROM along))
    RETURNING q.*
), counted AS (
    SELECT *, row_number() OVER (PARTITION BY email_id) AS nth, count(*) OVER () AS many FROM leased
)
SELECT l.account_id, l.email_id, l.recipient, l.domain_id, l.region, l.address, l.destination, l.attempts, l.status, l.expires_at,
       l.bulk, l.host, l.source, l.faults, l.next_at, e.envelope, CASE WHEN e.size * l.many <= %(octets)s THEN (
           SELECT bytes FROM messages m WHERE m.account_id = l.account_id AND m.email_id = l.email_id AND m.piece = 0
       ) END
FROM counted l LEFT JOIN LATERAL (
    SELECT size, envelope FROM emails
    WHERE account_id = l.account_id AND email_id = l.email_id AND l.nth = 1 AND l.attempts = 0 AND %(octets)s > 0 OFFSET 0
) e ON true
"""

# Planned once, for any limit: rows come from the index in their order, never from a bitmap that is sorted afterwards.
_IN_ORDER = ", ".join(f"set_config('{way}', 'off', true)" for way in (*_WITHOUT, "enable_bitmapscan", "enable_sort"))
_PLAN_IN_ORDER = Prepared("in_order", (), f"SELECT {_IN_ORDER}, {ONCE}")
_LOOK = {"region": "text", "now": "timestamptz", "skip": "text[]", "limit": "bigint", "walk": "integer", "start": "text"}
LOOK = Prepared.named("look", _LOOK, READY, _PLAN_IN_ORDER)
_TAKE = {"region": "text", "destinations": "text[]", "limits": "bigint[]", "now": "timestamptz", "lease": "bigint", "octets": "bigint"}
TAKE = Prepared.named("take", _TAKE, CLAIM, _PLAN_IN_ORDER)

RELEASE = """
UPDATE queue q
SET lease = NULL, destination = coalesce(%s, destination), next_at = coalesce(%s, next_at), reason = coalesce(%s, reason)
FROM unnest(%s::uuid[], %s::smallint[]) AS k(email_id, recipient)
WHERE q.email_id = k.email_id AND q.recipient = k.recipient AND q.lease IS NOT DISTINCT FROM %s
"""

# A pause that is being lifted at this moment is waited for, so that nothing waits for one that is over.
RELEASE_PAUSED = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%s::uuid[], %s::smallint[]) AS k(email_id, recipient)
), pause AS MATERIALIZED (
    SELECT account_id, until FROM account_pauses WHERE account_id = %s AND until > %s FOR SHARE
)
UPDATE queue q SET lease = NULL, next_at = greatest(q.next_at, (SELECT until FROM pause))
FROM given g
WHERE q.email_id = g.email_id AND q.recipient = g.recipient AND q.lease IS NOT DISTINCT FROM %s
"""

LEASED = "SELECT email_id, recipient FROM queue WHERE lease = %s"

# All waiting recipients of a scheduled email move together; the one with the lowest number stands for it, so that it is told of once.
DUE_SCHEDULES = """
WITH first AS MATERIALIZED (
    SELECT email_id FROM queue q
    WHERE lease IS NULL AND status = 'scheduled' AND next_at <= %s
    AND NOT EXISTS (SELECT FROM queue p WHERE p.email_id = q.email_id AND p.recipient < q.recipient AND p.status = 'scheduled')
    ORDER BY next_at LIMIT %s FOR UPDATE SKIP LOCKED
), moving AS MATERIALIZED (
    SELECT q.email_id, q.recipient, (
        SELECT s.origin FROM suppressions s WHERE s.account_id = q.account_id AND s.address = lower(q.address)
    ) AS barred
    FROM first JOIN queue q ON q.email_id = first.email_id AND q.status = 'scheduled'
), suppressed AS (
    DELETE FROM queue q USING moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND m.barred IS NOT NULL
    RETURNING q.account_id, q.email_id, q.domain_id, q.recipient, told_of_suppression(m.barred) AS told
), released AS (
    UPDATE queue q SET status = 'queued' FROM moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND m.barred IS NULL
    RETURNING q.account_id, q.email_id, q.domain_id
)
SELECT account_id, email_id, domain_id, recipient, told, 1 FROM suppressed
UNION ALL
(SELECT account_id, email_id, domain_id, NULL::smallint, NULL::jsonb, count(*) FROM released GROUP BY 1, 2, 3)
"""

TAKE_EXPIRED = """
WITH ended AS MATERIALIZED (
    SELECT email_id, recipient FROM queue WHERE lease IS NULL AND expires_at <= %s ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM queue q USING ended
WHERE q.email_id = ended.email_id AND q.recipient = ended.recipient
RETURNING q.account_id, q.email_id, q.recipient, q.domain_id, q.status, q.reason, q.notify
"""

# Reads the queue: no index is kept for what happens this seldom.
TAKE_OF_DOMAIN = """
WITH ended AS MATERIALIZED (
    SELECT email_id, recipient FROM queue WHERE domain_id = %s AND lease IS NULL LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM queue q USING ended
WHERE q.email_id = ended.email_id AND q.recipient = ended.recipient
RETURNING q.account_id, q.email_id, q.recipient, q.domain_id, q.status
"""

COUNTS = """
SELECT destination, count(*) FILTER (WHERE status <> 'scheduled' AND lease IS NULL), count(*) FILTER (WHERE lease IS NOT NULL),
       count(*) FILTER (WHERE status = 'scheduled'), min(next_at) FILTER (WHERE status <> 'scheduled' AND lease IS NULL)
FROM queue WHERE region = %s GROUP BY destination ORDER BY 2 DESC, 1
"""

UNEXPLAINED = """
SELECT count(*) FROM waiting_at(%s) w WHERE coalesce(w.reason, '') = '' OR w.next_at IS NULL OR NOT isfinite(w.next_at)
"""
