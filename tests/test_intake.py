"""The intake, with a store and a hand-off that only record what they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed

from mailsvc.accounts.quota import Taken
from mailsvc.content_filter import FilterRequest
from mailsvc.intake import Admitted, AsReceived, Busy, Content, Incoming, Intake, Key, OtherRequest, Rejected
from mailsvc.mail import html_to_text
from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.compose import Attachment
from mailsvc.policy import Limits, Refusal
from mailsvc.settings.plans import Exhausted
from mailsvc.store.mail.accept import Accepted, InProgress, Mismatch, NewEmail, Replayed, Submission
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres.errors import Unavailable

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACCOUNT = UUID(int=1)


@attrs.frozen
class Domain:
    name: str
    account_id: UUID = ACCOUNT
    id: UUID = UUID(int=7)
    region: str = "us-east-1"
    may_send: bool = True
    missing: str | None = None
    encrypted: bool = False


@attrs.frozen
class Caller:
    account_id: UUID = ACCOUNT
    key_id: UUID = UUID(int=2)
    domain_id: UUID | None = None
    plan: str | None = "free"
    ramp: int | None = 200


@attrs.frozen
class Reservation:
    destination: str
    lease: int = 42

    @property
    def leased(self) -> bool:
        return self.lease != 0


@attrs.define
class Rig:
    """Everything that intake uses."""

    answer: Any = Accepted()
    error: Exception | None = None
    submissions: list[Submission] = attrs.field(factory=list)
    taken: list[NewEmail] = attrs.field(factory=list)
    prepared: list[UUID] = attrs.field(factory=list)
    released: list[UUID] = attrs.field(factory=list)
    reserved: list[str] = attrs.field(factory=list)
    pools: list[str] = attrs.field(factory=list)
    notified: list[str] = attrs.field(factory=list)
    threads: int = 0
    quota: int | None = None  # recipients left; None: nobody counts
    content_filter: Any = None
    encrypted: bool = False  # messages of the account
    known: Any = None  # what a repeated request was answered

    async def recall(self, submission: Submission) -> Any:
        return self.known

    async def accept(self, submission: Submission) -> Any:
        assert {each.email_id for each in submission.emails} <= set(self.prepared)
        self.submissions.append(submission)
        if self.error is not None:
            raise self.error
        return self.answer

    async def find(self, account_id: UUID, name: str) -> Domain | None:
        return Domain(name, encrypted=self.encrypted) if name == "example.test" and account_id == ACCOUNT else None

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> Reservation:
        self.reserved.append(domain)
        self.pools.append(pool)
        return Reservation(f"mx.{domain}", 0 if domain == "busy.test" else 42)

    def prepare(self, email: NewEmail) -> None:
        self.prepared.append(email.email_id)

    def writing(self, emails: Sequence[NewEmail]) -> None:
        raise AssertionError("this is for the store")

    def deliver(self, email: NewEmail, reservations: Mapping[str, Reservation]) -> None:
        self.taken.append(email)

    def release(self, email_id: UUID, reservations: Mapping[str, Reservation]) -> None:
        self.released.append(email_id)

    def notify(self, channel: str) -> None:
        self.notified.append(channel)

    def in_thread(self, make: Callable[[], bytes]) -> Deferred[bytes]:
        self.threads += 1
        return succeed(make())

    @property
    def quotas(self) -> Any:
        rig = self

        class Quotas:
            async def take(self, account_id: UUID, plan: str | None, count: int, ramp: int | None) -> Taken | Exhausted:
                assert (account_id, plan, ramp) == (ACCOUNT, "free", 200) and rig.quota is not None
                if count > rig.quota:
                    return Exhausted("day", count, 0, rig.quota, NOW)
                rig.quota -= count
                return Taken(count, ())

            def refund(self, taken: Taken, count: int | None = None) -> None:
                assert rig.quota is not None
                rig.quota += taken.count if count is None else count

        return Quotas()

    def intake(self, **limits: int) -> Intake:
        return Intake(
            store=self,
            domains=self,  # type: ignore[arg-type]
            handoff=self,
            notifications=self,
            limits=Limits(**limits),
            expiry=timedelta(hours=72),
            in_thread=self.in_thread,
            clock=NOW.timestamp,
            quotas=None if self.quota is None else self.quotas,
            content_filter=self.content_filter,
            pool_of=lambda account_id, domain_id, bulk: "bulk" if bulk else "",
        )

    def submit(
        self, *emails: Incoming, caller: Caller | None = None, key: Key | None = None, permissive: bool = False, **limits: int
    ) -> Any:
        coroutine = self.intake(**limits).submit(caller or Caller(), emails, key, permissive=permissive)  # type: ignore[arg-type]
        results: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(results.append)
        (result,) = results
        return result


def incoming(sender: str = "Acme <hello@example.test>", to: str = "zoe@example.net", **changes: Any) -> Incoming:
    return Incoming(sender=parse_mailbox(sender), to=(parse_mailbox(to),), subject="Hi", content=Content(html="<p>Hello</p>"), **changes)


def test_places_are_reserved_in_the_pool_of_the_email() -> None:
    rig = Rig()
    rig.submit(incoming(), attrs.evolve(incoming(), headers={"Precedence": "bulk"}))
    assert rig.pools == ["", "bulk"]


def test_messages_that_are_stored_encrypted_are_handed_off_as_they_are() -> None:
    rig = Rig(encrypted=True)
    rig.submit(incoming())
    [handed], [stored] = rig.taken, rig.submissions[0].emails
    assert stored.encrypted and handed is stored and b"Hello" in handed.message and handed.cipher is None


def test_shared_html_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[str] = []
    monkeypatch.setattr(html_to_text, "text_of", lambda html: converted.append(html) or "Text")
    rig = Rig()
    other = attrs.evolve(incoming(), content=Content(html="<p>Other</p>"))
    rig.submit(incoming(), incoming(to="yan@example.net"), other)
    assert converted == ["<p>Hello</p>", "<p>Other</p>"]
    assert all(b"Text" in bytes(email.message) for email in rig.submissions[0].emails)


def bulk_of(rig: Rig) -> list[bool]:
    return [email.bulk for email in rig.submissions[-1].emails]


@pytest.mark.parametrize(
    ("headers", "bulk"),
    [
        ({}, False),
        ({"X-Precedence": "bulk"}, False),
        ({"Precedence": "auto_reply"}, False),
        ({"precedence": " Bulk "}, True),
        ({"Precedence": "list"}, True),
        ({"List-ID": "<news.example.test>"}, True),
        ({"Feedback-Id": "1:2:3:acme"}, True),
    ],
)
def test_a_header_can_declare_bulk_mail(headers: dict[str, str], bulk: bool) -> None:
    rig = Rig()
    rig.submit(incoming(headers=headers), incoming(bulk=True))
    assert bulk_of(rig) == [bulk, True]


def test_the_same_content_for_more_than_50_recipients_of_a_batch_is_bulk_mail() -> None:
    rig = Rig()
    same = [incoming(to=f"a{n}@example.net", cc=(parse_mailbox(f"b{n}@example.net"),)) for n in range(25)]
    other = attrs.evolve(incoming(), content=Content(html="<p>Hello Zoe</p>"))
    rig.submit(*same, other)
    assert bulk_of(rig) == [False] * 26
    rig.submit(*same, incoming(to="c@example.net"), other)
    assert bulk_of(rig) == [True] * 26 + [False]
    rig.submit(*[attrs.evolve(email, subject=f"Order {n}") for n, email in enumerate([*same, *same])])
    assert bulk_of(rig) == [False] * 50


@pytest.mark.parametrize(("count", "bulk"), [(50, False), (51, True)])
def test_a_submitted_message_for_more_than_50_recipients_is_bulk_mail(count: int, bulk: bool) -> None:
    rig = Rig()
    received = AsReceived(b"From: x\r\n\r\n", tuple(f"a{n}@example.net" for n in range(count)), "<1@example.test>")
    rig.submit(attrs.evolve(incoming(), content=received))
    assert bulk_of(rig) == [bulk]


def test_email_is_stored_once_and_handed_off() -> None:
    rig = Rig()
    admission = rig.submit(incoming())
    (email,) = rig.submissions[0].emails
    assert admission == Admitted((email.email_id,))
    assert rig.taken == [email]
    assert email.message_id == f"<{email.email_id}@example.test>"
    assert email.sender == "Acme <hello@example.test>"
    assert email.expires_at == NOW + timedelta(hours=72)
    assert (email.recipients[0].destination, email.recipients[0].leased, email.lease) == ("mx.example.net", True, 42)
    assert b"Hello" in bytes(email.message)
    assert rig.notified == ["events"]


def test_nothing_is_accepted_while_clocks_disagree() -> None:
    rig, raised = Rig(), []
    intake = rig.intake()
    intake.held = lambda: "this machine's clock is 60 s ahead of the database's"
    submitting = Deferred.fromCoroutine(intake.submit(Caller(), [incoming()]))  # type: ignore[arg-type]
    submitting.addErrback(lambda failure: raised.append(failure.value))
    assert isinstance(raised[0], Unavailable) and "60 s ahead" in raised[0].reason
    assert not rig.submissions and not rig.taken


def test_other_processes_are_notified_if_they_have_to_send() -> None:
    rig = Rig()
    rig.submit(incoming(to="a@busy.test"))
    assert "queue" in rig.notified


def test_each_address_gets_the_email_once() -> None:
    rig = Rig()
    twice = (parse_mailbox("Zoe <zoe@example.net>"), parse_mailbox("blind@example.net"))
    rig.submit(incoming(cc=twice, bcc=twice))
    (email,) = rig.submissions[0].emails
    assert [r.address for r in email.recipients] == ["zoe@example.net", "blind@example.net"]
    assert b"blind@example.net" in bytes(email.message)  # it is in Cc as well
    assert b"Bcc" not in bytes(email.message)


def test_scheduled_email_needs_no_reservation() -> None:
    rig = Rig()
    later = NOW + timedelta(days=2)
    rig.submit(incoming(scheduled_at=later))
    (email,) = rig.submissions[0].emails
    assert (email.recipients[0].destination, email.recipients[0].leased) == ("example.net", False)
    assert email.expires_at == later + timedelta(hours=72)
    assert b"Date: Sun, 22 Nov 2026" in bytes(email.message)


def test_one_refusal_refuses_all_in_strict_mode() -> None:
    rig = Rig()
    rejected = rig.submit(incoming(), incoming(sender="me@elsewhere.test"))
    assert isinstance(rejected, Rejected)
    assert list(rejected.refusals) == [1]
    assert "elsewhere.test" in rejected.refusals[1].message
    assert not rig.submissions and not rig.taken


def test_valid_emails_are_accepted_in_permissive_mode() -> None:
    rig = Rig()
    admission = rig.submit(incoming(), incoming(sender="me@elsewhere.test"), incoming(), permissive=True)
    first, second, third = admission.results
    assert isinstance(second, Refusal)
    assert [e.email_id for e in rig.submissions[0].emails] == [first, third]


def test_nothing_is_stored_when_all_are_refused() -> None:
    rig = Rig()
    rejected = rig.submit(incoming(sender="me@elsewhere.test"), permissive=True)
    assert isinstance(rejected, Rejected) and not rig.submissions


def test_key_for_another_domain_is_refused() -> None:
    rejected = Rig().submit(incoming(), caller=Caller(domain_id=UUID(int=9)))
    assert rejected.refusals[0].kind == "key"


def test_nothing_is_reserved_if_one_message_is_too_large() -> None:
    rig = Rig()
    big = attrs.evolve(incoming(), content=Content(text="x", attachments=(Attachment(b"y" * 5000, "y.bin"),)))
    rejected = rig.submit(incoming(), big, message=4000)
    assert list(rejected.refusals) == [1]
    assert rejected.refusals[1].kind == "size"
    assert not rig.reserved and not rig.submissions


class Filter:
    """Refuses mail to spam.test."""

    def __init__(self) -> None:
        self.asked: list[FilterRequest] = []

    async def check(self, requests: Mapping[int, FilterRequest]) -> dict[int, Refusal]:
        self.asked += requests.values()
        return {n: Refusal("filter", None, "Spam.") for n, each in requests.items() if "zoe@spam.test" in each.envelope.recipients}


def test_the_content_filter_sees_each_message_before_anything_is_reserved_or_stored() -> None:
    rig = Rig(content_filter=Filter())
    mails = incoming(client="203.0.113.5"), incoming(to="zoe@spam.test")
    rejected = rig.submit(*mails)
    assert {n: each.kind for n, each in rejected.refusals.items()} == {1: "filter"} and not rig.reserved and not rig.submissions
    envelope = rig.content_filter.asked[0].envelope
    assert (envelope.sender, envelope.recipients, envelope.ip) == ("hello@example.test", ("zoe@example.net",), "203.0.113.5")
    assert envelope.user == str(ACCOUNT) and b"Hello" in rig.content_filter.asked[0].message
    admitted = rig.submit(*mails, permissive=True)
    assert [isinstance(each, Refusal) for each in admitted.results] == [False, True]
    [stored] = rig.submissions[-1].emails
    assert str(stored.email_id) == rig.content_filter.asked[2].envelope.queue_id
    assert isinstance(rig.submit(mails[1], permissive=True), Rejected)


def test_the_content_filter_is_not_asked_about_system_mail_refused_mail_and_repeated_requests() -> None:
    rig = Rig(content_filter=Filter())
    assert isinstance(rig.submit(incoming(to="zoe@spam.test", source="system")), Admitted)
    assert isinstance(rig.submit(incoming("me@elsewhere.test"), incoming()), Rejected)
    rig.known = Replayed([str(UUID(int=5))])
    key = Key("POST /emails", "k", b"f" * 32)
    assert rig.submit(incoming(to="zoe@spam.test"), key=key) == Admitted((UUID(int=5),), replayed=True)
    rig.known = None
    assert rig.content_filter.asked == []
    assert isinstance(rig.submit(incoming(to="zoe@spam.test"), key=key), Rejected)


def test_large_content_is_composed_in_a_thread() -> None:
    rig = Rig()
    rig.submit(attrs.evolve(incoming(), content=Content(text="x" * 300_000)))
    assert rig.threads == 1


@pytest.mark.parametrize(("answer", "admission"), [(InProgress(), Busy()), (Mismatch(), OtherRequest())])
def test_used_idempotency_key_stores_nothing_and_releases_reservations(answer: Any, admission: Any) -> None:
    rig = Rig(answer)
    assert rig.submit(incoming(), key=Key("POST /emails", "k", b"f")) == admission
    assert len(rig.released) == 1 and rig.released == rig.prepared and not rig.taken


def test_repeated_request_gets_the_first_result() -> None:
    first = Rig()
    key = Key("POST /emails/batch", "k", b"f")
    admission = first.submit(incoming(), incoming(sender="me@elsewhere.test"), key=key, permissive=True)
    idempotency = first.submissions[0].idempotency
    assert idempotency is not None
    assert idempotency.expires_at == NOW + timedelta(hours=24)
    again = Rig(Replayed(idempotency.answer)).submit(incoming(), incoming(), key=key, permissive=True)
    assert again == Admitted(admission.results, replayed=True)


def test_repeated_request_that_would_be_refused_now_gets_the_first_result() -> None:
    key = Key("smtp", "k", b"f")
    refused = incoming("me@elsewhere.test")
    for known, admission in [
        (Replayed([str(UUID(int=5))]), Admitted((UUID(int=5),), replayed=True)),
        (InProgress(), Busy()),
        (Mismatch(), OtherRequest()),
    ]:
        assert Rig(known=known).submit(refused, key=key) == admission
        assert Rig(known=known).submit(incoming(), key=key, message=10) == admission
    assert isinstance(Rig().submit(refused, key=key), Rejected)


def test_failed_commit_releases_reservations_and_is_reported() -> None:
    rig = Rig(error=RuntimeError("away"))
    assert rig.submit(incoming()).type is RuntimeError
    assert len(rig.released) == 1 and rig.released == rig.prepared and not rig.taken and not rig.notified


def test_received_message_is_kept_byte_for_byte() -> None:
    rig = Rig()
    raw = b"From: hello@example.test\r\nMessage-ID: <theirs@client>\r\n\r\nHi\r\n"
    received = AsReceived(raw, ("a@example.net", "b@busy.test"), "<theirs@client>", StoredEnvelope(ret="HDRS"))
    rig.submit(attrs.evolve(incoming(), content=received, source="smtp"))
    (email,) = rig.submissions[0].emails
    assert email.message == raw
    assert email.message_id == "<theirs@client>"
    assert [(r.address, r.leased) for r in email.recipients] == [("a@example.net", True), ("b@busy.test", False)]
    assert email.envelope == StoredEnvelope(ret="HDRS")


@pytest.mark.parametrize(
    ("sender", "reply_to", "envelope"),
    [
        ("hello@example.test", "jö@example.net", StoredEnvelope(utf8_header=True)),
        ("jö@example.test", "hello@example.net", StoredEnvelope(smtputf8=True)),
        ("Jö <hello@example.test>", "hello@bücher.example", StoredEnvelope()),
    ],
)
def test_what_non_ascii_addresses_in_the_header_need(sender: str, reply_to: str, envelope: StoredEnvelope) -> None:
    rig = Rig()
    rig.submit(incoming(sender, reply_to=(parse_mailbox(reply_to),)))
    assert rig.submissions[0].emails[0].envelope == envelope


def test_plan_counts_recipients_and_refunds_suppressed_ones() -> None:
    rig = Rig(quota=10)
    two = attrs.evolve(incoming(), cc=(parse_mailbox("yan@example.net"),))
    rig.submit(two, incoming())
    assert rig.quota == 7
    rig.answer = Accepted({UUID(int=5): frozenset({1})})
    rig.submit(two)
    assert rig.quota == 6
    rig.submit(incoming(source="system"))
    assert rig.quota == 6  # what this service writes itself is not counted


def test_email_over_quota_is_not_stored_and_a_repeated_request_gets_its_result() -> None:
    rig = Rig(quota=1)
    refused = rig.submit(incoming(), incoming(), key=Key("POST /emails", "k", b"f"))
    assert isinstance(refused, Exhausted) and refused.wanted == 2
    assert (rig.submissions, len(rig.released), rig.quota) == ([], 2, 1)
    rig.known = Replayed([str(UUID(int=5)), str(UUID(int=6))])
    assert rig.submit(incoming(), incoming(), key=Key("POST /emails", "k", b"f")) == Admitted((UUID(int=5), UUID(int=6)), replayed=True)


@pytest.mark.parametrize(("answer", "error", "left"), [
    (Replayed([str(UUID(int=5))]), None, 5), (InProgress(), None, 5), (Mismatch(), None, 5),
    (None, Unavailable("away"), 5), (None, Unavailable("away", unknown=True), 4),
])  # fmt: skip
def test_email_that_was_not_stored_is_not_counted(answer: Any, error: Exception | None, left: int) -> None:
    rig = Rig(quota=5, answer=answer, error=error)
    rig.submit(incoming())
    assert rig.quota == left


def test_blocked_attachment_is_refused_before_anything_is_stored() -> None:
    rig = Rig()
    email = attrs.evolve(incoming(), content=Content(html="x", attachments=(Attachment(b"MZ", "run.exe"),)))
    rejected = rig.submit(email)
    assert isinstance(rejected, Rejected) and rejected.refusals[0].field == "attachments[0].filename"
    assert not rig.taken
    assert isinstance(rig.submit(email, blocked_endings=frozenset()), Admitted)


@pytest.mark.parametrize("changes", [{"subject": "é a " * 10_000}, {"headers": {"X-Note": "é a " * 10_000}}])
def test_large_headers_are_composed_in_a_thread(changes: dict[str, Any]) -> None:
    rig = Rig()
    assert isinstance(rig.submit(attrs.evolve(incoming(), **changes)), Admitted)
    assert rig.threads == 1
