"""The event ledger numbers and counts events, and payload turns them into the JSON that customers see.

Accepting and settling only insert events: incrementing a counter there would serialize all writers of an account. The ledger
numbers committed events afterwards, in batches: after each notification, and at least once a second. Several ledgers share the accounts by
transaction locks, and events, numbers and counts change in one commit, so a crash leaves nothing to clean up.

Readers only see numbered events, in an order without gaps.
"""

from mailsvc.events.ledger import Ledger

__all__ = ["Ledger"]
