"""Fills an account with contacts, segments and a broadcast for tests.bench.million, and lists the pages that show them."""

from __future__ import annotations

import psycopg2

# Every contact is in the first segment, every tenth in the second, every hundredth unsubscribed.
CONTACTS = """
INSERT INTO contacts (account_id, id, address, email, first_name, unsubscribed, created_at, updated_at, hash)
SELECT %(account)s, id, 'user' || i || '@' || host, 'user' || i || '@' || host, 'Name ' || i, i %% 100 = 0, at, at,
       decode(md5(i::text), 'hex')
FROM made, LATERAL (SELECT (ARRAY['gmail.com', 'outlook.com', 'example.com', 'h' || i %% 1000 || '.example'])[1 + i %% 4] AS host) AS h
"""
SEGMENTS = """
INSERT INTO segments (account_id, id, name, created_at)
SELECT %(account)s, ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'Segment ' || n, now() FROM generate_series(1, 2) AS n
"""
MEMBERS = """
INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at)
SELECT %(account)s, s.id, made.id, at FROM made, segments s
WHERE s.account_id = %(account)s AND (s.name = 'Segment 1' OR i %% 10 = 0)
"""
TOPIC = """
INSERT INTO topics (account_id, id, name, subscribed, public, created_at, updated_at)
VALUES (%(account)s, '00000000-0000-7000-8000-000000000001', 'News', true, true, now(), now())
"""
CHOICES = """
INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at)
SELECT %(account)s, made.id, '00000000-0000-7000-8000-000000000001', i %% 2 = 0, at FROM made WHERE i %% 5 = 0
"""
# One that was sent to the first segment, and a draft for it that nobody has written yet, which opens in the editor.
BROADCASTS = """
INSERT INTO broadcasts (account_id, id, name, segment_id, sender, reply_to, subject, preview_text, html, text, status, created_at,
                        started_at, sent_at, ended_at, domain_id, total, passed, queued)
SELECT %(account)s, b.id::uuid, b.name, '00000000-0000-7000-8000-000000000001', 'Shop <hello@' || d.name || '>', '{}', 'News', '',
       CASE WHEN b.status = 'sent' THEN '<p>Hello {{{contact.first_name|there}}}</p>' END, NULL, b.status, now() - interval '1 day',
       b.at, b.at, b.at, d.id, b.total, b.total, b.total
FROM domains d, (VALUES
    ('00000000-0000-7000-8000-00000000000a', 'Sent', 'sent', now() - interval '20 hours', %(count)s),
    ('00000000-0000-7000-8000-00000000000b', 'Draft', 'draft', NULL::timestamptz, 0)
) AS b(id, name, status, at, total)
WHERE d.account_id = %(account)s
"""
RECIPIENTS = """
INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks)
SELECT %(account)s, '00000000-0000-7000-8000-00000000000a', id, id, (i %% 200 = 0)::int FROM made
"""
COUNTS = """
INSERT INTO broadcast_counts (account_id, broadcast_id, hour, type, count)
SELECT %(account)s, '00000000-0000-7000-8000-00000000000a', date_trunc('hour', now()) - n * interval '1 hour', t, 45000
FROM generate_series(1, 20) AS n, unnest(ARRAY['email.sent', 'email.delivered', 'email.opened.unique', 'email.bounced.permanent']) AS t
"""
SUPPRESSIONS = """
INSERT INTO suppressions (id, account_id, address, email, origin, source_id, reason, created_at)
SELECT id, %(account)s, 'gone' || i || '@example.com', 'gone' || i || '@example.com', 'bounce', id, '550 5.1.1 No such user', at
FROM made WHERE i %% 100 = 0
"""
FILL = (CONTACTS, SEGMENTS, MEMBERS, TOPIC, CHOICES, BROADCASTS, RECIPIENTS, COUNTS, SUPPRESSIONS)

AUDIENCE, BROADCAST = "/dashboard/audience", "/dashboard/broadcasts/00000000-0000-7000-8000-00000000000"
EDITOR = f"{BROADCAST}b/edit"


def pages(dsn: str) -> dict[str, str]:
    """Their paths by name."""
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM contacts ORDER BY id OFFSET 10 LIMIT 1")
        [(contact,)] = cursor.fetchall()
    connection.close()
    segment = "00000000-0000-7000-8000-000000000001"
    return {
        "Contacts": AUDIENCE,
        "Contacts, a name that is there": f"{AUDIENCE}?q=Name+99",
        "Contacts, a name that is not": f"{AUDIENCE}?q=nothing+of+this",
        "One contact": f"{AUDIENCE}/contacts/{contact}",
        "Segments": f"{AUDIENCE}/segments",
        "One segment": f"{AUDIENCE}/segments/{segment}",
        "Topics": f"{AUDIENCE}/topics",
        "One topic": f"{AUDIENCE}/topics/{segment}",
        "Properties": f"{AUDIENCE}/properties",
        "Imports": f"{AUDIENCE}/imports",
        "Preference page": f"{AUDIENCE}/page",
        "Broadcasts": "/dashboard/broadcasts",
        "One broadcast, its result": f"{BROADCAST}a",
        "One broadcast, its recipients": f"{BROADCAST}a/recipients",
        "One broadcast, bounced": f"{BROADCAST}a/recipients?type=bounced",
        "One broadcast, by provider": f"{BROADCAST}a/providers",
        "One broadcast, before it is sent": f"{BROADCAST}b",
        "Editor": EDITOR,
    }
