"""The content filter: what follows from each answer, and its limits. Rspamd is a function here; its protocol: tests/net/test_rspamd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mailsvc.content_filter import ACTIONS, LATER, ContentFilter, FilterRequest, refusal
from mailsvc.http import problem
from mailsvc.monitoring import metrics
from mailsvc.monitoring.metrics import Exposition
from mailsvc.net.rspamd import Envelope, FilterError, Verdict
from mailsvc.policy import Refusal
from mailsvc.relay import replies
from mailsvc.settings.content_filter import ContentFilter as Rules

ENVELOPE = Envelope("0198", "a@example.com", ("b@example.net",), "account")
GOOD = Verdict("no action", 0.1, 15.0)


def verdict(action: str) -> Verdict:
    return Verdict(action, 16.5, 15.0, ("BAD_URL", "SPAMMY"), "Spam message rejected")


@attrs.define
class Rspamd:
    """Answers when it is let through; `asked` are the messages in their order."""

    asked: list[bytes] = attrs.field(factory=list)
    waiting: list[Deferred[Any]] = attrs.field(factory=list)

    async def check(self, envelope: Envelope, message: bytes) -> Verdict:
        self.asked.append(message)
        self.waiting.append(Deferred())
        found: Verdict = await self.waiting[-1]
        return found


class Rig:
    def __init__(self, **rules: Any) -> None:
        self.clock, self.rspamd = Clock(), Rspamd()
        self.filter = ContentFilter(self.rspamd, Rules(**rules), self.clock, lambda work: succeed(work()))  # type: ignore[arg-type]

    def check(self, *messages: Any) -> list[dict[int, Refusal]]:
        """A list that gets the result once there is one."""
        result: list[dict[int, Refusal]] = []
        requests = {n: FilterRequest(ENVELOPE, message) for n, message in enumerate(messages)}
        Deferred.fromCoroutine(self.filter.check(requests)).addCallback(result.append)
        return result


@pytest.mark.parametrize("action", [*ACTIONS, "some day"])
def test_only_refusing_actions_refuse(action: str) -> None:
    found = refusal(verdict(action))
    kinds = {"reject": "filter", "discard": "filter", "quarantine": "filter", "soft reject": "later"}
    assert (found and found.kind) == kinds.get(action)


def test_a_refusal_names_the_reason_in_both_protocols() -> None:
    refused, later = refusal(verdict("reject")), refusal(verdict("soft reject"))
    assert refused is not None and later is not None
    assert refused.message == ("The content filter refused this email. Spam message rejected. Its score is 16.5 of 15 (BAD_URL, SPAMMY).")
    http = problem.refused(refused), problem.refused(later)
    assert [(each.status, each.name, each.headers) for each in http] == [
        (422, "validation_error", {}), (503, "service_unavailable", {"Retry-After": "60"}),
    ]  # fmt: skip
    assert http[0].message == refused.message
    smtp = replies.of_refusal(refused), replies.of_refusal(later)
    assert [(each.code, each.enhanced) for each in smtp] == [(550, "5.7.1"), (451, "4.7.1")]


def test_messages_are_checked_at_the_same_time_up_to_a_limit() -> None:
    rig = Rig(concurrent=2)
    result = rig.check(b"0", b"1", b"2")
    assert rig.rspamd.asked == [b"0", b"1"]
    rig.rspamd.waiting[1].callback(verdict("reject"))
    assert rig.rspamd.asked == [b"0", b"1", b"2"]
    rig.rspamd.waiting[0].callback(GOOD)
    rig.rspamd.waiting[2].callback(GOOD)
    [found] = result
    assert list(found) == [1]
    assert rig.filter.results == {"no action": 2, "reject": 1}


def test_the_metric_counts_each_answer() -> None:
    rig = Rig()
    rig.check(b"0")
    rig.rspamd.waiting[0].callback(attrs.evolve(GOOD, action="some day"))
    exposition = Exposition()
    metrics.accepts(SimpleNamespace(accepted={}, content_filter=rig.filter))(exposition)
    values = {(sample.name, *sample.labels.values()): sample.value for family in exposition.collect() for sample in family.samples}
    assert values["mailsvc_content_filter_total", "other"] == 1 and values["mailsvc_content_filter_total", "reject"] == 0


def test_a_large_message_is_not_checked_and_pieces_are_joined() -> None:
    class Pieces:
        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Any:
            return iter((b"abc", b"def"))

    rig = Rig(size=1024)
    result = rig.check(b"x" * 1025, Pieces())
    assert rig.rspamd.asked == [b"abcdef"]
    rig.rspamd.waiting[0].callback(GOOD)
    assert result == [{}] and rig.filter.results["too large"] == 1


@pytest.mark.parametrize(
    ("when", "found"), [("refuse", {0: Refusal("later", None, LATER), 1: Refusal("later", None, LATER)}), ("accept", {})]
)
def test_without_an_answer_in_time_the_setting_decides(when: str, found: dict[int, Refusal]) -> None:
    rig = Rig(seconds=10, concurrent=1, when_unavailable=when)
    result = rig.check(b"hangs", b"waits")
    rig.clock.advance(9.9)
    assert result == []
    rig.clock.advance(0.2)
    assert result == [found]  # waiting for a slot counts, too
    assert rig.filter.results == {"unavailable": 2}
    again = rig.check(b"next")  # no slot was lost
    rig.rspamd.waiting[-1].errback(FilterError("The connection was refused."))
    assert list(again[0]) == ([0] if found else [])
    fine = rig.check(b"next")
    rig.rspamd.waiting[-1].callback(GOOD)
    assert fine == [{}]
