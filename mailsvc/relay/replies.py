"""The relay's replies: one for each way in which intake, the store or a header can refuse a mail."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from mailsvc.intake import Admission, Admitted, Busy, OtherRequest, Rejected
from mailsvc.mail.reply import Reply
from mailsvc.mail.submission import Unfit
from mailsvc.policy import Refusal
from mailsvc.settings.plans import Exhausted
from mailsvc.store.postgres.errors import DataRejected, OutOfResources, StoreError, Transient

log = Logger()

STORE_UNAVAILABLE: Final = Reply(451, "Mail cannot be stored at the moment, try again later", "4.3.0")
STORE_FULL: Final = Reply(452, "Insufficient system storage", "4.3.1")
NOT_STORABLE: Final = Reply(550, "The message contains a value that cannot be stored", "5.6.0")
BUSY: Final = Reply(451, "A message with this idempotency key is being accepted, try again later", "4.3.0")
KEY_REUSED: Final = Reply(550, "The idempotency key was already used for another message", "5.7.1")
TOO_FAST: Final = Reply(451, "Too many messages per second, try again later", "4.7.1")

LOGIN_UNAVAILABLE: Final = Reply(454, "Temporary authentication failure", "4.7.0")  # 4954 §6
SUSPENDED: Final = Reply(525, "The account is suspended", "5.7.13")  # RFC 5248
FOREIGN_NETWORK: Final = Reply(535, "This API key cannot be used from your network", "5.7.8")
MOVED: Final = Reply(454, "The account of this API key has moved to another cell, try again later", "4.7.0")
NETWORK_MOVED: Final = Reply(451, "The account for your network has moved to another cell, try again later", "4.3.0")
LEFT: Final = Reply(421, "The account has moved to another cell, connect again", "4.3.2")
REVOKED: Final = Reply(550, "The API key is no longer valid", "5.7.1")
TOO_MANY_FAILURES: Final = Reply(421, "Too many failed logins from your address, try again later", "4.7.0")
TOO_MANY_FOR_KEY: Final = Reply(421, "Too many connections with this API key", "4.7.0")
TOO_MANY_FOR_ADDRESS: Final = Reply(421, "Too many connections from your address", "4.7.0")
TOO_MANY_CONNECTIONS: Final = Reply(421, "Too many connections, try again later", "4.3.2")

NO_LITERALS: Final = Reply(550, "Mail to address literals is not relayed", "5.1.2")
NO_DOMAIN: Final = Reply(550, "The recipient address has no domain", "5.1.2")
NO_MAILBOX: Final = Reply(550, "No such mailbox here; authenticate to send to other domains", "5.1.1")

_BY_KIND = {
    "domain": (550, "5.7.1"),
    "key": (550, "5.7.1"),
    "from": (550, "5.7.1"),
    "recipients": (550, "5.5.3"),
    "size": (552, "5.3.4"),
    "filter": (550, "5.7.1"),
    "later": (451, "4.7.1"),
    "loop": (554, "5.4.6"),
}


def of_admission(admission: Admission) -> Reply:
    match admission:
        case Admitted((result, *_)):
            if isinstance(result, Refusal):
                return of_refusal(result)
            return Reply(250, f"Ok: queued as {result}", "2.0.0")
        case Rejected(refusals):
            return of_refusal(refusals[0])
        case Busy():
            return BUSY
        case OtherRequest():
            return KEY_REUSED
        case Exhausted(period="day", too_large=False):
            return Reply(451, admission.message, "4.7.1")  # resets tomorrow
        case Exhausted():
            return Reply(550, admission.message, "5.7.1")
    raise AssertionError(admission)


def of_refusal(refusal: Refusal | Unfit) -> Reply:
    code, enhanced = _BY_KIND.get(refusal.kind, (550, "5.6.0"))
    return Reply(code, refusal.message if isinstance(refusal, Refusal) else str(refusal), enhanced)


def of_store(error: StoreError) -> Reply:
    """Temporary if the database is unavailable; permanent only for values that it will never accept."""
    match error:
        case OutOfResources(full=True):
            log.error("the database is full: {reason}", reason=str(error))
            return STORE_FULL
        case Transient():
            log.warn("storing a message failed temporarily: {reason}", reason=str(error))
            return STORE_UNAVAILABLE
        case DataRejected():
            return NOT_STORABLE
    log.error("storing a message failed: {reason}", reason=str(error))
    return STORE_UNAVAILABLE
