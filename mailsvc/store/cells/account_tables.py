"""Which rows move with an account to another cell, and how. Pure, but for the shapes of the tables, which the catalog has.

*Passive* tables are copied ahead while the service changes them. No process acts on their rows while the account itself is missing.
*Staged* ones make processes act, or admit somebody. They are read while all processes of the old cell stand still, kept in the table
`account_arrivals` of the new cell, and inserted when the account has left the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.store.account_data.copying import LARGE
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.statements import Shape

BATCH = 1000  # rows
PASSIVE = (
    "segments", "topics", "contacts", "contact_segments", "contact_topics", "unsubscribes", "consent_texts", "consents",
    "contact_import_errors", "broadcast_settings", "images", "broadcast_counts", "broadcast_links", "broadcast_recipients",
    "suppressions", "erased_suppressions", "emails", "messages", "events", "event_log", "attempts", "hits", "rollups", "webhook_messages",
    "webhook_attempts", "request_log", "receipts", "dmarc_results", "received_reports", "received_tls_results", "idempotency",
    "sandbox_emails",
)  # fmt: skip
USERS = ("users", "identities", "passkeys", "recovery_codes")
# In the order of insertion.
STAGED = (
    "accounts", *USERS, "members", "single_sign_on", "single_sign_on_domains", "single_sign_on_members", "domains", "domain_history",
    "dkim_keys", "domain_claims", "domain_adds", "api_keys", "webhooks", "audience_keys", "body_keys", "contact_properties",
    "contact_imports", "contact_import_chunks", "confirmations", "broadcasts", "broadcast_versions", "operator_access", "shared_tests",
    "erasures", "quota", "rate_windows", "audit", "audit_details", "audit_heads", "audit_sent", "event_sequences", "fresh_events",
    "webhook_outbox", "notices", "queue",
)  # fmt: skip
# They end with the move.
LEFT_BEHIND = {
    "account_pauses": "the pause of the move",
    "address_changes": "members ask again",
    "exports": "files that are being written",
    "links": "they name the host of the old cell",
    "sessions": "members sign in again",
}
BOOKKEEPING = ("account_arrivals", "account_move_keys", "account_moves")  # of moves
# In the old cell, without names: nobody can change the audit log, and the role of the daemon may not even be allowed to.
KEPT = ("audit", "audit_details", "audit_heads", "audit_sent")
USER_COLUMNS = {
    "identities": "user_id", "passkeys": "user_id", "recovery_codes": "user_id", "members": "user_id", "single_sign_on_members": "user_id",
    "api_keys": "created_by",
}  # fmt: skip


@attrs.frozen
class Moved:
    """A table, as statements about its rows of one account see it."""

    shape: Shape

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def columns(self) -> str:
        return ", ".join(self.shape.types)

    @property
    def values(self) -> str:
        return ", ".join(f"t.{column}" for column in self.shape.types)

    @property
    def scope(self) -> str:
        """Which rows; with the parameter `account`."""
        where = statements.scope(self.shape, True)
        if where == "true":
            raise ValueError(f"Which rows of {self.name} belong to an account is not known.")
        return where

    @property
    def size(self) -> int:
        """How many rows are copied at once."""
        return LARGE.get(self.name, BATCH)

    @property
    def keyed(self) -> str:
        """The columns of the key with their types, for jsonb_to_recordset."""
        return ", ".join(f"{key} {self.shape.types[key]}" for key in self.shape.keys)

    @property
    def same(self) -> str:
        """That the rows `t` and `k` have the same key."""
        return " AND ".join(f"t.{key} = k.{key}" for key in self.shape.keys)

    @property
    def key(self) -> str:
        return ", ".join(f"t.{key}" for key in self.shape.keys)

    @property
    def after(self) -> str:
        return statements.after(self.shape, True)

    @property
    def delete_some(self) -> str:
        return statements.delete_some(self.shape)


def read(cursor: Any) -> Mapping[str, Moved]:
    """All tables of the lists, by name."""
    names = [*PASSIVE, *STAGED, *LEFT_BEHIND]
    cursor.execute(statements.CATALOG, (names,))
    found = statements.shaped(cursor.fetchall())
    return {name: Moved(found[name]) for name in names}
