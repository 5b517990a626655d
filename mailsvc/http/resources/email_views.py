"""Emails as responses show them, with all keys that client libraries know, whether set or not."""

from __future__ import annotations

from mailsvc.bounces import diagnosis
from mailsvc.http.operations import Parameter
from mailsvc.http.views import View, acknowledged, choice, const, count, many, maybe, optional, text, texts, time, uuid
from mailsvc.outcome import Meaning
from mailsvc.store.mail.emails import RecipientView

SENT = View("SentEmail", {"id": uuid("The email's ID.")})
SENT_BATCH = View(
    "SentBatch",
    {
        "data": many(SENT, "The IDs of the accepted emails, in the order of the request."),
        "errors": optional(
            many(
                View(
                    "BatchError",
                    {"index": count("The place of the email in the request.", 0), "message": text("What is wrong with it.", "Too large.")},
                ),
                "With `x-batch-validation: permissive`: the emails that were refused.",
            )
        ),
    },
)
CHANGED = acknowledged("email", "ChangedEmail", "The email's ID.")

IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "Makes it safe to repeat a request: for 24 hours, the same request with the same key gets the same response and sends nothing.",
    "order-1234/shipped",
    {"type": "string", "minLength": 1, "maxLength": 256},
    where="header",
)
VALIDATION = Parameter(
    "x-batch-validation",
    "`strict` (default): one invalid email rejects the batch. `permissive`: the valid emails are sent.",
    "strict",
    {"enum": ["strict", "permissive"]},
    where="header",
)

LAST_EVENTS = (
    "delivered", "queued", "scheduled", "sent", "delivery_delayed", "bounced", "complained", "opened", "clicked", "failed", "suppressed",
    "canceled",
)  # fmt: skip
EMAIL_ROW = View(
    "EmailRow",
    {
        "id": uuid("The email's ID.", "email_id"),
        "message_id": text("The Message-ID header field.", "<0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e@example.com>"),
        "to": texts("The recipients.", ["someone@example.net"]),
        "from": text("The sender.", "Acme <hello@example.com>", "sender"),
        "created_at": time("When the email was accepted."),
        "subject": text("The subject.", "Your order has shipped"),
        "bcc": texts("The recipients of a blind copy.", []),
        "cc": texts("The recipients of a copy.", []),
        "reply_to": texts("Where replies go.", ["support@example.com"]),
        "last_event": choice("The latest event.", LAST_EVENTS, lambda email: email.last_event.removeprefix("email.")),
        "scheduled_at": maybe(time("When the email will be sent, if it was scheduled.")),
        "broadcast_id": optional(uuid("The broadcast that it is part of.")),
        "topic_id": optional(uuid("The topic that it is about.")),
    },
)


def _meaning(recipient: RecipientView) -> Meaning | None:
    retried = recipient.status in ("delayed", "uncertain", "sending")
    return None if recipient.kind is None else diagnosis.known(recipient.kind, retried=retried)


RECIPIENT = View(
    "EmailRecipient",
    {
        "address": text("The address.", "someone@example.net", format="email"),
        "status": text("The state of this recipient.", "delayed"),
        "reason": maybe(text("Why it hasn't been delivered.", "mx.example.net answered 451 4.7.1 Try again later.")),
        "next_attempt_at": maybe(time("When it will be tried again, or when it expires if that is earlier.", "next_at")),
        "attempts": count("How often it was tried.", 1),
        "last_reply": maybe(text("What the recipient's server last answered.", "451 4.7.1 Try again later")),
        "class": maybe(text("The class of the failure.", "greylisted", "kind")),
        "rule": maybe(text("The rule that read the reply.", "4xx")),
        "must_act": maybe(text("Who can fix it.", "provider", lambda one: (found := _meaning(one)) and found.party)),
        "advice": maybe(text("What to do.", "No action needed.", lambda one: (found := _meaning(one)) and found.advice)),
    },
)
EMAIL = View(
    "Email",
    {
        "object": const("email", "Always `email`."),
        **EMAIL_ROW.values,
        "html": maybe(text("The HTML version.", "<p>It is on its way.</p>")),
        "text": maybe(text("The plain text version.", "It is on its way.")),
        "tags": many(
            View(
                "EmailTag",
                {
                    "name": text("The name.", "category", lambda tag: tag[0]),
                    "value": text("The value.", "welcome", lambda tag: tag[1]),
                },
            ),
            "The tags.",
        ),
        "recipients": many(RECIPIENT, "The state of each recipient."),
        "note": maybe(text("Why the content is missing.", "The content of this email has been deleted.")),
    },
)
