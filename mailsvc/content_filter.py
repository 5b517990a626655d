"""Has a content filter check each message before it is accepted, and acts on its verdict.

Off unless the setting content_filter.url is set. A filter only accepts, refuses or postpones: messages are sent as they were submitted.
The protocol: net/rspamd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError, gatherResults
from twisted.logger import Logger

from mailsvc.net.rspamd import Envelope, FilterError, Rspamd, Verdict
from mailsvc.policy import Refusal
from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore
from mailsvc.settings.content_filter import ContentFilter as Rules
from mailsvc.store.mail.values import Pieces

ACTIONS = ("no action", "greylist", "add header", "rewrite subject", "soft reject", "reject", "discard", "quarantine")
RESULTS = (*ACTIONS, "other", "too large", "unavailable")
LATER = "The content filter is not available. Send the email again later."

log = Logger()


@attrs.frozen
class FilterRequest:
    """A message and its envelope."""

    envelope: Envelope
    message: bytes | Pieces = attrs.field(repr=False)


def refusal(verdict: Verdict) -> Refusal | None:
    """What follows from a verdict.

    `greylist` is not a request to wait: rspamd says `soft reject` when it wants that. Marks for readers (`add header`, `rewrite subject`)
    are for the recipient's own filter, not for mail on its way out.
    """
    match verdict.action:
        case "soft reject":
            return Refusal("later", None, f"The content filter postponed this email. {_why(verdict)} Send it again later.")
        case "reject" | "discard" | "quarantine":
            return Refusal("filter", None, f"The content filter refused this email. {_why(verdict)}")
    return None


def _why(verdict: Verdict) -> str:
    score = f"Its score is {verdict.score:g} of {verdict.required:g}" + (f" ({', '.join(verdict.symbols)})." if verdict.symbols else ".")
    text = verdict.message if not verdict.message or verdict.message.endswith((".", "!", "?")) else f"{verdict.message}."
    return f"{text} {score}".strip()


@attrs.define(eq=False)
class ContentFilter:
    """`in_thread` runs a function off the reactor."""

    rspamd: Rspamd
    rules: Rules
    clock: Any
    in_thread: InThread
    results: Counter[str] = attrs.field(factory=Counter, init=False)  # messages since the start, one of RESULTS each
    _available: bool = attrs.field(default=True, init=False)
    _slots: Semaphore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = Semaphore(self.rules.concurrent)

    async def check(self, requests: Mapping[int, FilterRequest]) -> dict[int, Refusal]:
        """The refusals by index. All messages are checked at the same time, as far as the limits allow."""
        found = await gatherResults([Deferred.fromCoroutine(self._check(each)) for each in requests.values()], consumeErrors=True)
        return {index: refused for index, refused in zip(requests, found, strict=True) if refused is not None}

    def reads(self, size: int) -> bool:
        """Whether the filter is asked about messages of so many bytes."""
        return size <= self.rules.size

    async def _check(self, request: FilterRequest) -> Refusal | None:
        if not self.reads(len(request.message)):
            self.results["too large"] += 1
            return None
        answer = Deferred.fromCoroutine(self._query(request)).addTimeout(self.rules.seconds, self.clock)
        try:
            verdict = await answer
        except (FilterError, TimeoutError) as error:
            why = str(error) if isinstance(error, FilterError) else f"There was no answer within {self.rules.seconds:g} s."
            self.results["unavailable"] += 1
            if self._available:  # once, not for each message
                log.error("The content filter is not available: {why}", why=why)
            self._available = False
            return Refusal("later", None, LATER) if self.rules.when_unavailable == "refuse" else None
        if not self._available:
            log.info("The content filter is available again.")
        self._available = True
        self.results[verdict.action if verdict.action in ACTIONS else "other"] += 1
        refused = refusal(verdict)
        if verdict.action != "no action":
            log.info(
                "The content filter says {action} for email {email}: {score} of {required} ({symbols})",
                action=verdict.action, email=request.envelope.queue_id, score=verdict.score, required=verdict.required,
                symbols=", ".join(verdict.symbols),
            )  # fmt: skip
        return refused

    async def _query(self, request: FilterRequest) -> Verdict:
        """Waiting for a free slot counts toward the time limit."""
        await self._slots.acquire()
        try:
            message = request.message
            whole = message if isinstance(message, bytes) else await self.in_thread(partial(b"".join, message))
            return await self.rspamd.check(request.envelope, whole)
        finally:
            self._slots.release()
