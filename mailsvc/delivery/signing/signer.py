"""Where small messages are signed: on the reactor's thread, or in the signing process if the processor has no instructions for batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mailsvc.delivery.signing.child import Lost, SigningProcess
from mailsvc.mail.authentication import dkim, rsa_batch
from mailsvc.mail.authentication.dkim import Unsigned
from mailsvc.runtime.together import Together

FROM = 8  # messages at once, from which on there is a signing process
MOST = 16  # messages for which it is asked at once

# Called with a function that prepares a message. The result is its DKIM-Signature fields.
Signer = Callable[[Callable[[], Unsigned]], Awaitable[bytes]]


def signer(reactor: Any, opened: Any) -> Signer:
    """`opened` stops what it starts."""
    if rsa_batch.available:
        return Together(reactor, dkim.complete, rsa_batch.LANES)
    child = SigningProcess(reactor)
    opened.add("signing", child.stop)
    return Together(reactor, SignedElsewhere(child), MOST)


@attrs.frozen
class SignedElsewhere:
    """Call it with messages to get their DKIM-Signature fields: from the signing process if it is ready."""

    child: SigningProcess

    def __call__(self, messages: list[Unsigned]) -> list[bytes] | Deferred[list[bytes]]:
        if len(messages) >= FROM:
            self.child.start()
        if not self.child.ready:
            return dkim.complete(messages)
        signing = self.child.sign(dkim.hashes_of(messages))
        return signing.addCallbacks(lambda made: dkim.completed(messages, made), lambda failure: _again(failure, messages))


def _again(failure: Failure, messages: list[Unsigned]) -> list[bytes]:
    failure.trap(Lost)
    return dkim.complete(messages)
