"""Decides where small messages are signed: in the signing process or on the reactor's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mailsvc.delivery.signing.child import Lost, SigningProcess
from mailsvc.mail.authentication import dkim, rsa_batch
from mailsvc.mail.authentication.dkim import Unsigned
from mailsvc.runtime.idle_cores import IdleCores
from mailsvc.runtime.together import Together

MOST = 2 * rsa_batch.LANES  # messages that are signed together
FROM = rsa_batch.LANES  # messages at once, from which on there is a child
IDLE, BUSY = 0.3, 0.1  # idle cores from which on, and until which, the child is used where a batch costs little


@attrs.define(eq=False)
class Signer:
    """Call it with a function that prepares a message; the result is its DKIM-Signature fields.

    `idle` returns how many cores have nothing to do.
    """

    reactor: Any = attrs.field(repr=False)
    child: SigningProcess
    idle: Callable[[], float]
    _together: Together[Unsigned, bytes] = attrs.field(init=False)
    _helps: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._together = Together(self.reactor, self._sign, MOST)

    @classmethod
    def start(cls, reactor: Any, opened: Any) -> Signer:
        """`opened` stops it."""
        child = SigningProcess(reactor)
        opened.add("signing", child.stop)
        return cls(reactor, child, IdleCores())

    def __call__(self, prepare: Callable[[], Unsigned]) -> Deferred[bytes]:
        return self._together(prepare)

    def _sign(self, messages: list[Unsigned]) -> list[bytes] | Deferred[list[bytes]]:
        if len(messages) >= FROM:
            self.child.start()
        self._helps = not rsa_batch.available or self.idle() >= (BUSY if self._helps else IDLE)
        if not (self._helps and self.child.ready):
            return dkim.complete(messages)
        signing = self.child.sign(dkim.requests(messages))
        return signing.addCallbacks(lambda made: dkim.completed(messages, made), lambda failure: self._again(failure, messages))

    def _again(self, failure: Failure, messages: list[Unsigned]) -> list[bytes]:
        failure.trap(Lost)
        return dkim.complete(messages)
