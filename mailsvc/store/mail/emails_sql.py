"""The statements of reading and changing emails. What they are for: store/mail/emails."""

from __future__ import annotations

# Never the message. The newest event is the one with the greatest id; an email that was ever scheduled says for when in one of its events.
_VIEW = """
SELECT e.account_id, e.email_id, e.created_at, e.source, e.key_id, e.domain_id, e.message_id, e.sender, e.to_, e.cc, e.bcc, e.reply_to,
       e.recipients, e.subject, e.tags, e.headers, e.envelope, e.size, e.bulk,
       CASE WHEN e.scheduled_at IS NOT NULL THEN coalesce((
           SELECT v.data ->> 'scheduled_at' FROM events v
           WHERE v.account_id = e.account_id AND v.email_id = e.email_id AND v.type = 'email.scheduled' ORDER BY v.event_id DESC LIMIT 1
       )::timestamptz, e.scheduled_at) END,
       (SELECT v.type FROM events v WHERE v.account_id = e.account_id AND v.email_id = e.email_id ORDER BY v.event_id DESC LIMIT 1)
FROM emails e
"""

GET = _VIEW + "WHERE e.account_id = %s AND e.email_id = %s"
NEWEST = _VIEW + "WHERE e.account_id = %s ORDER BY e.email_id DESC LIMIT %s"
OLDER = _VIEW + "WHERE e.account_id = %s AND e.email_id < %s ORDER BY e.email_id DESC LIMIT %s"
NEWER = _VIEW + "WHERE e.account_id = %s AND e.email_id > %s ORDER BY e.email_id LIMIT %s"

# A recipient that waits is explained by the queue, one that does not by its newest event. What is given is written out wherever it is
# named, so that the plan is made for the one day that the email is of: a first plan for all days took 30 ms.
RECIPIENTS = """
WITH given AS NOT MATERIALIZED (
    SELECT %(account_id)s::uuid AS account_id, %(email_id)s::uuid AS email_id
), told AS (
    SELECT DISTINCT ON (v.recipient) v.recipient, v.type, coalesce(v.data ->> 'reply', v.data ->> 'reason') AS said,
           v.data ->> 'reason' AS reason, v.data ->> 'class' AS class, v.data ->> 'rule' AS rule, v.data ? 'late' AS late
    FROM given g JOIN events v USING (account_id, email_id)
    WHERE v.recipient IS NOT NULL AND v.type = ANY (%(types)s)
    ORDER BY v.recipient, v.event_id DESC
), tried AS (
    SELECT r.recipient, count(*) AS attempts, (array_agg(r.reply ORDER BY a.attempt_id DESC))[1] AS reply,
           (array_agg(r.class ORDER BY a.attempt_id DESC))[1] AS class, (array_agg(r.rule ORDER BY a.attempt_id DESC))[1] AS rule
    FROM given g JOIN attempts a USING (account_id, email_id),
         unnest(a.recipients, a.replies, a.classes, a.rules) AS r(recipient, reply, class, rule)
    GROUP BY r.recipient
)
SELECT r.number - 1, r.address, w.status, t.type, coalesce(w.reason, t.reason), w.next_at, coalesce(w.attempts, tried.attempts, 0),
       CASE WHEN t.late THEN t.said ELSE coalesce(tried.reply, t.said) END,
       CASE WHEN t.type IS NULL THEN tried.class ELSE t.class END, CASE WHEN t.type IS NULL THEN tried.rule ELSE t.rule END
FROM given g
JOIN emails e USING (account_id, email_id)
CROSS JOIN unnest(e.recipients) WITH ORDINALITY AS r(address, number)
LEFT JOIN waiting_at(%(now)s) w ON w.email_id = g.email_id AND w.account_id = g.account_id AND w.recipient = r.number - 1
LEFT JOIN told t ON t.recipient = r.number - 1
LEFT JOIN tried ON tried.recipient = r.number - 1
ORDER BY r.number
"""

ATTEMPTS = """
SELECT attempt_id, recipients, outcomes, replies, coalesce(classes, '{}'), coalesce(rules, '{}'), host, address, tls, started_at, seconds,
       transcript
FROM attempts WHERE account_id = %s AND email_id = %s ORDER BY attempt_id
"""

EXISTS = "SELECT EXISTS (SELECT FROM emails WHERE account_id = %s AND email_id = %s)"

# What nobody is sending and what has not perhaps been delivered already.
CANCEL = """
DELETE FROM queue WHERE account_id = %s AND email_id = %s AND coalesce(lease, -1) = -1 AND status IN ('scheduled', 'queued', 'delayed')
RETURNING recipient, domain_id
"""

RESCHEDULE = """
UPDATE queue SET next_at = %(at)s, expires_at = expires_at + (%(at)s - next_at)
WHERE account_id = %(account_id)s AND email_id = %(email_id)s AND coalesce(lease, -1) = -1 AND status = 'scheduled'
"""

# Told in the email's history alone: nothing happened that a reader of events has to act on.
RESCHEDULED = """
INSERT INTO events (account_id, email_id, event_id, type, at, data) VALUES (%s, %s, %s, 'email.scheduled', %s, %s)
"""
