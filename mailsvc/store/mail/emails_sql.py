"""SQL of store/mail/emails, which explains it, and the columns of its views."""

from __future__ import annotations

from mailsvc.store.sql import Columns, statement

# Without the message. The latest event has the greatest ID; the time of a scheduled email is in its latest event email.scheduled.
EMAIL = Columns.of(
    account_id="e.account_id",
    email_id="e.email_id",
    created_at="e.created_at",
    source="e.source",
    key_id="e.key_id",
    domain_id="e.domain_id",
    message_id="e.message_id",
    sender="e.sender",
    to="e.to_",
    cc="e.cc",
    bcc="e.bcc",
    reply_to="e.reply_to",
    recipients="e.recipients",
    subject="e.subject",
    tags="e.tags",
    headers="e.headers",
    envelope="e.envelope",
    size="e.size",
    bulk="e.bulk",
    scheduled_at="""CASE WHEN e.scheduled_at IS NOT NULL THEN coalesce((
        SELECT v.data ->> 'scheduled_at' FROM events v
        WHERE v.account_id = e.account_id AND v.email_id = e.email_id AND v.type = 'email.scheduled' ORDER BY v.event_id DESC LIMIT 1
    )::timestamptz, e.scheduled_at) END""",
    last_event="""(
        SELECT v.type FROM events v WHERE v.account_id = e.account_id AND v.email_id = e.email_id ORDER BY v.event_id DESC LIMIT 1
    )""",
)
_VIEW = f"SELECT {EMAIL} FROM emails e "

GET = _VIEW + "WHERE e.account_id = %s AND e.email_id = %s"
NEWEST = _VIEW + "WHERE e.account_id = %s ORDER BY e.email_id DESC LIMIT %s"
OLDER = _VIEW + "WHERE e.account_id = %s AND e.email_id < %s ORDER BY e.email_id DESC LIMIT %s"
NEWER = _VIEW + "WHERE e.account_id = %s AND e.email_id > %s ORDER BY e.email_id LIMIT %s"

RECIPIENTS = statement("mailsvc.store.mail", "recipients")

ATTEMPT = Columns.of(
    attempt_id="attempt_id",
    recipients="recipients",
    outcomes="outcomes",
    replies="replies",
    classes="coalesce(classes, '{}')",
    rules="coalesce(rules, '{}')",
    host="host",
    address="address",
    tls="tls",
    started_at="started_at",
    seconds="seconds",
    transcript="transcript",
)
ATTEMPTS = f"SELECT {ATTEMPT} FROM attempts WHERE account_id = %s AND email_id = %s ORDER BY attempt_id"

EXISTS = "SELECT EXISTS (SELECT FROM emails WHERE account_id = %s AND email_id = %s)"

# Except recipients being sent to, and those that may have been delivered already.
CANCEL = """
DELETE FROM queue WHERE account_id = %s AND email_id = %s AND coalesce(lease, -1) = -1 AND status IN ('scheduled', 'queued', 'delayed')
RETURNING recipient, domain_id
"""

RESCHEDULE = """
UPDATE queue SET next_at = %(at)s, expires_at = expires_at + (%(at)s - next_at)
WHERE account_id = %(account_id)s AND email_id = %(email_id)s AND coalesce(lease, -1) = -1 AND status = 'scheduled'
"""

# Only in the email's history, not in the event log: nothing happened that a reader of events has to act on.
RESCHEDULED = """
INSERT INTO events (account_id, email_id, event_id, type, at, data) VALUES (%s, %s, %s, 'email.scheduled', %s, %s)
"""
