"""Which tables belong to an account, and which of them are in its archive. The map of personal data has their columns."""

from __future__ import annotations

from collections.abc import Sequence

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.statements import Shape

# In the archive, besides the account itself and its members. What other rows refer to comes first.
ARCHIVED = (
    "domains", "domain_history", "dkim_keys", "api_keys", "webhooks", "audience_keys", "body_keys", "contact_properties", "segments",
    "topics", "contacts", "contact_segments", "contact_topics", "unsubscribes", "consent_texts", "consents", "confirmations",
    "contact_imports", "contact_import_errors", "broadcasts", "broadcast_versions", "broadcast_settings", "images", "broadcast_counts",
    "broadcast_links", "broadcast_recipients", "suppressions", "erased_suppressions", "emails", "messages", "events", "event_log",
    "event_sequences", "attempts", "hits", "rollups", "webhook_messages", "webhook_attempts", "request_log", "receipts", "dmarc_results",
    "received_reports", "received_tls_results", "audit", "audit_details", "audit_heads",
)  # fmt: skip
# Not in the archive, and why. They are deleted with the account.
LEFT_OUT = {
    "account_arrivals": "moves between cells of this installation",
    "account_move_keys": "moves between cells of this installation",
    "account_moves": "moves between cells of this installation",
    "account_pauses": "the operator of the other installation decides",
    "audit_sent": "about destinations of this installation",
    "contact_import_chunks": "imports that run are not continued elsewhere",
    "domain_adds": "limits begin again",
    "domain_claims": "claims that wait for DNS begin again",
    "exports": "files that are being written",
    "fresh_events": "events of the last seconds",
    "idempotency": "answers to requests of the last day",
    "notices": "delivery status notifications that are being written",
    "quota": "quotas begin again",
    "operator_access": "the operator of this installation; the audit log has the same",
    "queue": "mail is delivered by the installation that accepted it",
    "rate_windows": "limits begin again",
    "shared_tests": "limits begin again",
    "sandbox_emails": "the development inbox",
    "webhook_outbox": "webhooks are sent by the installation that made them",
}
# They stay when an account is deleted: nobody can change the audit log, but what it names is removed from audit_details; and certificates
# of erasures, which name nobody.
KEPT = ("audit", "audit_heads", "audit_sent", "audit_details", "erasures")


async def shapes(pool: Pool, names: Sequence[str]) -> Sequence[Shape]:
    """The tables with their columns and keys, in this order."""
    found = await statements.catalog(pool, names)
    return [found[name] for name in names]
