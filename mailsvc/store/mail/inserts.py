"""How emails become rows: one JSON document carries them all but their messages, one statement spreads it over the tables.

One parameter in place of some fifty an email is what makes a shared commit cheap: the server parses one text. The messages stand one
behind the other in a second parameter, as octets, and the document says where each begins. The same statement leaves out recipients
that are on the account's suppression list, and answers with them.
Who commits what, together with whom: store/mail/accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

import orjson

from mailsvc.store.ids import uuid7
from mailsvc.store.mail.dsn_requests import FAILURE, wanted
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.postgres.errors import DataRejected
from mailsvc.store.postgres.prepared import Prepared

SHARDS = 16  # of the ledger, by account
PIECE = 256 * 1024  # the most octets in one row of messages
STATEMENT = 512 * 1024  # about the most octets of messages that one statement carries, so that no reactor turn is long
SMALL = 64 * 1024  # a message up to here is written with its email; a larger one in pieces of its own

_INSERT = f"""
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS x(
        account_id uuid, email_id uuid, created_at timestamptz, source text, key_id uuid, domain_id uuid, message_id text, sender text,
        to_ text[], cc text[], bcc text[], reply_to text[], recipients text[], subject text, tags jsonb, headers jsonb, envelope jsonb,
        size integer, bulk boolean, scheduled_at timestamptz, expires_at timestamptz, region text, destinations text[], leases bigint[],
        notify smallint[],
        event_id uuid, type text, data jsonb, shard smallint, at integer)
), stored AS (
    INSERT INTO emails (account_id, email_id, created_at, source, key_id, domain_id, message_id, sender, to_, cc, bcc, reply_to,
                        recipients, subject, tags, headers, envelope, size, bulk, scheduled_at)
    SELECT account_id, email_id, created_at, source, key_id, domain_id, message_id, sender, to_, cc, bcc, reply_to,
           recipients, subject, tags, headers, envelope, size, bulk, scheduled_at
    FROM new
), aimed AS MATERIALIZED (
    SELECT n.email_id, r.number - 1 AS recipient, n.account_id, n.domain_id, n.region, r.address, r.destination,
           CASE WHEN n.scheduled_at IS NULL THEN 'queued' ELSE 'scheduled' END AS status,
           n.bulk, coalesce(n.scheduled_at, n.created_at) AS next_at, n.expires_at, r.lease, r.notify,
           CASE WHEN n.scheduled_at IS NULL THEN (
               SELECT s.origin FROM suppressions s WHERE s.account_id = n.account_id AND s.address = lower(r.address)
           ) END AS barred
    FROM new n,
         unnest(n.recipients, n.destinations, n.leases, n.notify) WITH ORDINALITY AS r(address, destination, lease, notify, number)
), queued AS (
    INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease,
                       notify)
    SELECT email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease, notify
    FROM aimed WHERE barred IS NULL
), facts AS MATERIALIZED (
    SELECT n.shard, n.account_id, n.email_id, n.event_id, n.domain_id, NULL::bigint AS recipient, n.type, n.created_at, n.data,
           o.count AS weight
    FROM new n JOIN (SELECT email_id, count(*) FROM aimed WHERE barred IS NULL GROUP BY email_id) AS o USING (email_id)
    UNION ALL
    SELECT n.shard, n.account_id, n.email_id, uuid7_before(n.event_id, a.recipient), n.domain_id, a.recipient, 'email.suppressed',
           n.created_at, told_of_suppression(a.barred), 1
    FROM new n JOIN aimed a USING (email_id) WHERE a.barred IS NOT NULL
), told AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, created_at, data FROM facts
), fresh AS (
    INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight)
    SELECT shard, account_id, email_id, event_id, domain_id, type, created_at, weight FROM facts
), noticed AS (
    INSERT INTO notices (account_id, email_id, recipient, event_id, next_at)
    SELECT n.account_id, n.email_id, a.recipient, uuid7_before(n.event_id, a.recipient), n.created_at + interval '1 second'
    FROM new n JOIN aimed a USING (email_id) WHERE a.barred IS NOT NULL AND a.notify & {FAILURE} <> 0
), kept AS (
    INSERT INTO messages (account_id, email_id, piece, bytes)
    SELECT account_id, email_id, 0, substring($2 FROM at + 1 FOR size) FROM new WHERE at IS NOT NULL
)
SELECT email_id, recipient::integer FROM aimed WHERE barred IS NOT NULL
"""

INSERT_EMAILS = Prepared("accept", ("json", "bytea"), _INSERT)
INSERT_PIECE = Prepared(
    "piece", ("uuid", "uuid", "smallint", "bytea"), "INSERT INTO messages (account_id, email_id, piece, bytes) VALUES ($1, $2, $3, $4)"
)


def shard(account_id: UUID) -> int:
    """Which ledger an account belongs to."""
    return account_id.int % SHARDS


def document(rows: object) -> str:
    """Rows as the one parameter of a statement."""
    try:
        return orjson.dumps(rows).decode()
    except orjson.JSONEncodeError:
        raise DataRejected("22021") from None  # a lone surrogate, or a number that JSON cannot carry


def documents(emails: Iterable[NewEmail]) -> Iterator[tuple[str, bytes]]:
    """The emails as parameters of INSERT_EMAILS, by id, each pair carrying at most about STATEMENT octets of messages."""
    rows: list[dict[str, object]] = []
    bodies: list[bytes] = []
    octets = 0
    for email in sorted(emails, key=lambda e: e.email_id):
        small = len(email.message) <= SMALL
        if rows and small and octets + len(email.message) > STATEMENT:
            yield document(rows), b"".join(bodies)
            rows, bodies, octets = [], [], 0
        row = _row(email)
        if small:
            row["at"] = octets
            bodies.extend((email.message,) if isinstance(email.message, bytes) else email.message)
            octets += len(email.message)
        rows.append(row)
    if rows:
        yield document(rows), b"".join(bodies)


def pieces(email: NewEmail) -> Iterator[bytes]:
    """What is written by INSERT_PIECE: nothing of a small message, else its octets in order."""
    if len(email.message) > SMALL:
        yield from _cut([email.message] if isinstance(email.message, bytes) else email.message)


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield from (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))


def _row(email: NewEmail) -> dict[str, object]:
    scheduled_at = email.scheduled_at
    return {
        "account_id": email.account_id,
        "email_id": email.email_id,
        "created_at": email.created_at,
        "source": email.source,
        "key_id": email.key_id,
        "domain_id": email.domain_id,
        "message_id": email.message_id,
        "sender": email.sender,
        "to_": email.to,
        "cc": email.cc,
        "bcc": email.bcc,
        "reply_to": email.reply_to,
        "recipients": [r.address for r in email.recipients],
        "subject": email.subject,
        "tags": [{"name": name, "value": value} for name, value in email.tags] or None,
        "headers": dict(email.headers) or None,
        "envelope": email.envelope.stored(),
        "size": len(email.message),
        "bulk": email.bulk,
        "scheduled_at": scheduled_at,
        "expires_at": email.expires_at,
        "region": email.region,
        "destinations": [r.destination for r in email.recipients],
        "leases": [email.lease if r.leased else None for r in email.recipients],
        "notify": wanted(email.envelope),
        "event_id": uuid7(email.created_at.timestamp()),
        "type": "email.sent" if scheduled_at is None else "email.scheduled",
        "data": None if scheduled_at is None else {"scheduled_at": scheduled_at},
        "shard": shard(email.account_id),
    }
