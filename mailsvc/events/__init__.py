"""THE BOOKS: gives every committed event its number in its account's sequence, and counts it.

Accepting and settling only insert events, because a counter of an account that they would all increment would make every
writer of that account wait for the others. The ledger comes after them, in batches of its own: after a notification, and
once a second without it. Several ledgers share the accounts by locks that go with their transactions, so there is nothing
to take over when one dies, and nothing half-done: events, numbers and counts change in one commit.

Readers of events see numbered ones only, in an order without gaps.
"""

from mailsvc.events.ledger import Ledger

__all__ = ["Ledger"]
