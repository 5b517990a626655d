"""SQL of store/queue/claims, which explains it."""

from __future__ import annotations

from mailsvc.store.mail.inserts import SMALL
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.sql import statement

# The table varies between empty and millions of rows, so statistics are never right, and a wrong plan reads all of it.
# IS NOT DISTINCT FROM is an equality that no index supports, and coalesce(lease, …) matches no partial index: both make sure that a row
# is found by its key first and compared afterwards.
_WITHOUT = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
BY_INDEX = "".join(f"SET LOCAL {way} = off; " for way in _WITHOUT)
# The same before a prepared statement: it applies when the statement is planned. ONCE is for statements that leave the planner no choice:
# they are planned once, instead of five times and then compared.
_BY_INDEX = ", ".join(f"set_config('{way}', 'off', true)" for way in _WITHOUT)
ONCE = "set_config('plan_cache_mode', 'force_generic_plan', true)"
PLAN_BY_INDEX = Prepared("by_index", (), f"SELECT {_BY_INDEX}")
PLAN_ONCE_BY_INDEX = Prepared("once_by_index", (), f"SELECT {_BY_INDEX}, {ONCE}")

READY = statement("mailsvc.store.queue", "ready")

_DUE = """SELECT * FROM (
                SELECT ctid, email_id FROM queue
                WHERE region = %(region)s AND destination = a.destination AND {kind} AND lease IS NULL AND status <> 'scheduled'
                AND next_at <= %(now)s
                ORDER BY next_at LIMIT a.most FOR UPDATE SKIP LOCKED
            ) {name}"""

CLAIM = statement(
    "mailsvc.store.queue",
    "claim",
    transactional=_DUE.format(kind="NOT bulk", name="transactional"),
    bulk=_DUE.format(kind="bulk", name="in_bulk"),
    small=SMALL,
)

# Rows are read from the index in order, never from a bitmap that is sorted afterwards. What is prepared is planned once for any limit.
_UNORDERED = (*_WITHOUT, "enable_bitmapscan", "enable_sort")
IN_ORDER = "".join(f"SET LOCAL {way} = off; " for way in _UNORDERED)
_IN_ORDER = ", ".join(f"set_config('{way}', 'off', true)" for way in _UNORDERED)
_PLAN_IN_ORDER = Prepared("in_order", (), f"SELECT {_IN_ORDER}, {ONCE}")
_LOOK = {"region": "text", "now": "timestamptz", "skip": "text[]", "limit": "bigint", "scan": "integer", "start": "text"}
LOOK = Prepared.named("look", _LOOK, READY, _PLAN_IN_ORDER)
_TAKE = {
    "region": "text",
    "destinations": "text[]",
    "limits": "bigint[]",
    "now": "timestamptz",
    "lease": "bigint",
    "message_bytes": "bigint",
}
TAKE = Prepared.named("take", _TAKE, CLAIM, _PLAN_IN_ORDER)

# Mail of a domain that has moved to another region goes there when it is no longer leased.
REGION_NOW = "coalesce((SELECT d.region FROM domains d WHERE d.id = q.domain_id), q.region)"
RELEASE = f"""
UPDATE queue q
SET lease = NULL, region = {REGION_NOW},
    destination = coalesce(%s, destination), next_at = coalesce(%s, next_at), reason = coalesce(%s, reason)
FROM unnest(%s::uuid[], %s::smallint[]) AS k(email_id, recipient)
WHERE q.email_id = k.email_id AND q.recipient = k.recipient AND q.lease IS NOT DISTINCT FROM %s
"""

# FOR SHARE waits for a pause that is being lifted, so that no mail waits for a pause that has ended.
RELEASE_PAUSED = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%s::uuid[], %s::smallint[]) AS k(email_id, recipient)
), pause AS MATERIALIZED (
    SELECT account_id, until FROM account_pauses WHERE account_id = %s AND until > %s FOR SHARE
)
UPDATE queue q SET lease = NULL, region = {REGION_NOW}, next_at = greatest(q.next_at, (SELECT until FROM pause))
FROM given g
WHERE q.email_id = g.email_id AND q.recipient = g.recipient AND q.lease IS NOT DISTINCT FROM %s
"""

LEASED = "SELECT email_id, recipient, ctid::text FROM queue WHERE lease = %s"

DUE_SCHEDULES = statement("mailsvc.store.queue", "release_scheduled")

MORE_TIME = 100  # days
TAKE_EXPIRED = statement("mailsvc.store.queue", "expire", more_time=MORE_TIME)

# Reads the whole queue, in the order of its key: too rare for an index. Each transaction continues behind the one before it; from the
# beginning, each would pass what the others have deleted.
TAKE_OF_DOMAIN = """
WITH ended AS MATERIALIZED (
    SELECT email_id, recipient FROM queue WHERE domain_id = %s AND lease IS NULL AND (email_id, recipient) > (%s, %s)
    ORDER BY email_id, recipient LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM queue q USING ended
WHERE q.email_id = ended.email_id AND q.recipient = ended.recipient
RETURNING q.account_id, q.email_id, q.recipient, q.domain_id, q.status
"""

# Leased rows must not change (settle.sql). Reads the whole queue: too rare for an index.
MOVE_DOMAIN = """
WITH moving AS MATERIALIZED (
    SELECT email_id, recipient FROM queue WHERE domain_id = %s AND region <> %s AND lease IS NULL LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE queue q SET region = %s, next_at = greatest(q.next_at, %s) FROM moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient
"""

COUNTS = """
SELECT destination, count(*) FILTER (WHERE status <> 'scheduled' AND lease IS NULL), count(*) FILTER (WHERE lease IS NOT NULL),
       count(*) FILTER (WHERE status = 'scheduled'), min(next_at) FILTER (WHERE status <> 'scheduled' AND lease IS NULL)
FROM queue WHERE region = %s GROUP BY destination ORDER BY 2 DESC, 1
"""

UNEXPLAINED = """
SELECT count(*) FROM waiting_at(%s) w WHERE coalesce(w.reason, '') = '' OR w.next_at IS NULL OR NOT isfinite(w.next_at)
"""
