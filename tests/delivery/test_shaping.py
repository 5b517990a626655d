"""Provider rules: the shipped file, how lanes share a provider's limits, and what follows from a reply."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.delivery import shaping
from mailsvc.delivery.admission.budget import Budget
from mailsvc.delivery.connection.connect import CannotConnect
from mailsvc.delivery.shaping import BadRules, Limits, Provider, Reaction, Shaping, provider_of
from mailsvc.mail.reply import Reply, split_enhanced
from mailsvc.outcome import Delivered
from tests.delivery.fakes import START, DeliveryRig, answered, taken

FILE = Path(__file__).parents[2] / "mailsvc/delivery/shaping.toml"
SHIPPED = shaping.read(tomllib.loads(FILE.read_text()))


def reply(text: str) -> Reply:
    code, _, rest = text.partition(" ")
    enhanced, rest = split_enhanced(int(code), rest)
    return Reply(int(code), rest, enhanced)


def big(reactions: tuple[Reaction, ...] = (), **limits: Any) -> Shaping:
    return Shaping({"big": Provider("big", (".big.example",), Limits(**limits), reactions)})


def two_domains(rig: DeliveryRig) -> list[Any]:
    """Domains with mail servers of their own, all of the provider `big`."""
    return [rig.server(f"{name}.example", f"1.1.1.{number}", host=f"{name}.big.example") for number, name in enumerate(("a", "b"), 1)]


# The file


@pytest.mark.parametrize("rule", [rule for p in SHIPPED.providers.values() for rule in p.reactions], ids=lambda rule: rule.name)
def test_each_rule_matches_its_sample(rule: Reaction) -> None:
    destination = shaping.destination_name(rule.name.rpartition("-")[0], "mx.example")
    found = SHIPPED.reaction(destination, [reply(rule.sample)])
    assert found is not None
    assert found[0] == rule


def test_general_rules_match_their_samples() -> None:
    for rule in SHIPPED.reactions:
        found = SHIPPED.reaction("mx.example", [reply(rule.sample)])
        assert found is not None
        assert found[0] == rule


def test_an_ordinary_refusal_matches_no_rule() -> None:
    for text in ("550 5.1.1 no such user", "450 4.2.1 greylisted, come back later", "452 4.2.2 over quota"):
        for provider in SHIPPED.providers:
            assert SHIPPED.reaction(f"{provider}/mx", [reply(text)]) is None


@pytest.mark.parametrize(
    ("hosts", "provider"),
    [
        (["aspmx.l.google.com", "alt1.aspmx.l.google.com", "aspmx2.googlemail.com"], "google"),
        (["outlook-com.olc.protection.outlook.com"], "microsoft-consumer"),
        (["contoso-com.mail.protection.outlook.com"], "microsoft"),
        (["mta5.am0.yahoodns.net", "mta6.am0.yahoodns.net"], "yahoo"),
        (["aspmx.l.google.com", "backup.example.org"], None),
        (["notgoogle.com"], None),
        ([], None),
    ],
)
def test_a_domain_belongs_to_a_provider_if_all_of_its_hosts_do(hosts: list[str], provider: str | None) -> None:
    assert SHIPPED.provider(hosts) == provider


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[provider.x]", "match"),
        ('[provider.x]\nmatch = ["x"]', "match"),
        ('[provider.x]\nmatch = [".x"]\nconections = 3', "'conections'"),
        ('[provider.x]\nmatch = [".x"]\nconnections = 0', "connections = 0"),
        ('[provider."a/b"]\nmatch = [".x"]', "lower-case letters"),
        ('[[reply]]\nthen = "pause"', "at least one of"),
        ('[[reply]]\ncode = 421\nthen = "stop"', "'stop'"),
        ('[[reply]]\ncode = 421\nthen = "slow"\nbecause = "x"', "minutes"),
        ('[[reply]]\ncode = 421\nthen = "slow"\nminutes = 1', "because"),
        ('[[reply]]\ncode = 421\nthen = "slow"\nbecause = "x"\nminutes = inf', "minutes"),
        ('[[reply]]\ncode = "421"', "code = '421'"),
        ("[[reply]]\ncode = 250", "code = 250"),
        ("[[reply]]\nenhanced = 4.7", "enhanced = 4.7"),
        ("[[reply]]\ntext = 421", "text = 421"),
        ("[reply]\ncode = 421", "a list of tables"),
        ('[provider.x]\nmatch = [".x"]\nreply = 421', "a list of tables"),
        ('[provider.x]\nmatch = [".x"]\nmessages_per_connection = 0.5', "a whole number above 0"),
        ('[provider.x]\nmatch = [".x"]\nmessages_per_second = inf', "messages_per_second = inf"),
    ],
)
def test_an_error_in_the_file_is_reported(text: str, message: str) -> None:
    with pytest.raises(BadRules, match=message.replace("(", r"\(")):
        shaping.read(tomllib.loads(text))


# Warm-up

# Twilio SendGrid: emails an hour from an address in automated warm-up, by day.
HOURLY = [
    20, 28, 39, 55, 77, 108, 151, 211, 295, 413, 579, 810, 1000, 1587,
    2222, 3111, 4356, 6098, 8583, 11953, 16734, 23427, 32798, 45917, 64284, 89998, 125997, 176395,
]  # fmt: skip
# Oracle Responsys: of the emails of a new address on its first day, how many are for whom.
DIVIDED = {"google": 10_000, "microsoft-consumer": 7_500, "yahoo": 5_000, shaping.OTHERS: 10_000}


def test_a_new_source_follows_the_published_schedules() -> None:
    for day, hourly in enumerate(HOURLY, 1):
        limits = {name: SHIPPED.warm_up_limit(name, day) or 0 for name in DIVIDED}
        assert limits == {name: 24 * hourly * part // sum(DIVIDED.values()) for name, part in DIVIDED.items()}
        assert 0 <= 24 * hourly - sum(limits.values()) < len(DIVIDED), "together what the address may send"
    assert SHIPPED.warm_up_days == len(HOURLY)


# Limits


def test_the_domains_of_a_provider_share_its_connections() -> None:
    rig = DeliveryRig(big(connections=3), connections_initial=5)
    servers = two_domains(rig)
    stuck: list[Deferred[Any]] = []
    for server in servers:
        server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    for email in range(1, 21):
        rig.store.add(email, f"x@{'ab'[email % 2]}.example")
    rig.start().run(3)
    assert sum(len(server.open) for server in servers) == 3
    assert {provider_of(lane.destination) for lane in rig.delivery.lanes} == {"big"}
    for server in servers:
        server.answer = taken
    for _ in range(len(stuck)):
        stuck.pop().callback(taken(type("E", (), {"recipients": ("x",)})()))
    rig.run(60)
    assert not rig.store.rows
    assert max(server.most_open for server in servers) <= 3


def test_processes_of_a_region_share_a_limit_evenly() -> None:
    peers = [1]
    budget = Budget(Clock(), Limits(connections=10, messages_per_second=6.0), lambda: peers[0], lambda: None)
    assert (budget.connections, budget.rate) == (10, 6.0)
    peers[0] = 3
    assert (budget.connections, budget.rate) == (3, 2.0)
    peers[0] = 40
    assert budget.connections == 1


def test_mail_is_sent_at_the_providers_rate() -> None:
    rig = DeliveryRig(big(messages_per_second=0.5), idle_seconds=30.0)
    first, second = two_domains(rig)
    for email in range(1, 9):
        rig.store.add(email, f"x@{'ab'[email % 2]}.example")
    rig.start().run(40)
    times = sorted(mail.at for mail in first.mails + second.mails)
    assert len(times) == 8
    assert min(later - sooner for sooner, later in pairwise(times)) >= 1.99


def test_connections_are_opened_at_the_providers_rate() -> None:
    rig = DeliveryRig(big(connections_per_minute=60.0, messages_per_connection=1))
    first, second = two_domains(rig)
    for email in range(1, 11):
        rig.store.add(email, f"x@{'ab'[email % 2]}.example")
    rig.start().run(30)
    assert not rig.store.rows
    dials = sorted(first.dials + second.dials)
    assert len(dials) == 10
    assert min(later - sooner for sooner, later in pairwise(dials)) >= 0.99


def test_a_connection_sends_as_many_mails_as_the_provider_allows() -> None:
    rig = DeliveryRig(big(messages_per_connection=3), connections_initial=1, connections_max=1)
    server, _ = two_domains(rig)
    for email in range(1, 8):
        rig.store.add(email, "x@a.example")
    rig.start().run(10)
    assert [mail.connection for mail in server.mails] == [1, 1, 1, 2, 2, 2, 3]


def test_a_stop_with_idle_connections_and_another_lane_that_waits_ends_well() -> None:
    """The end of the first idle connection makes room at the provider, and the other lane then wants the slot of the second one."""
    rig = DeliveryRig(big(connections=2), connections=6, connections_max=2, idle_seconds=60.0)
    answers: list[tuple[Deferred[Any], Any]] = []

    def wait(envelope: Any) -> Deferred[Any]:
        answers.append((Deferred(), envelope))
        return answers[-1][0]

    a, b = two_domains(rig)
    for number in range(3):
        rig.server(f"slow{number}.example", f"1.1.2.{number + 1}").answer = wait
        rig.store.add(number, f"x@slow{number}.example")
    rig.store.add(3, "x@a.example")
    rig.start().run()
    a.answer = wait
    for number in (4, 5):
        rig.store.add(number, "x@a.example")
    rig.delivery.wake()
    rig.run()
    for answer, envelope in answers[3:]:
        answer.callback(taken(envelope))
    rig.store.add(6, "x@b.example")
    rig.delivery.wake()
    rig.run()
    assert (len(a.open), b.dials, rig.delivery.slots.taken) == (2, [], 5)
    stopped = rig.stop()
    for answer, envelope in answers[:3]:
        answer.callback(taken(envelope))
    rig.run(1)
    assert (stopped.result, rig.delivery.slots.taken) == (None, 0)


# Answers

PAUSE = Reaction("big-1", "pause", 7200.0, "it defers us for complaints", code=421, text="[TSS")
SLOW = Reaction("big-2", "slow", 600.0, "it says so", enhanced="4.7.28", messages_per_minute=6.0)


def test_a_pause_is_one_row_for_all_domains_of_a_provider_and_ends_on_time() -> None:
    rig = DeliveryRig(big((PAUSE,)), retry_after=(60.0,), retry_every=60.0)
    first, second = two_domains(rig)
    first.answer = lambda envelope: answered(envelope, Reply(421, "[TSS04] deferred", "4.7.0"), "mail")
    for email in range(1, 41):
        rig.store.add(email, f"x@{'ab'[email % 2]}.example")
    second.answer = lambda envelope: Deferred()
    rig.start().run(3)
    [(name, hold)] = rig.store.hold_rows.items()
    assert (name, hold.state) == ("big", "paused")
    assert "big is paused because it defers us for complaints (rule big-1)" in hold.reason
    assert hold.until.timestamp() == pytest.approx(START + 7200, abs=5)
    sent = len(first.mails) + len(second.mails)
    rig.run(3600)
    assert len(first.mails) + len(second.mails) == sent
    assert not any(rig.delivery.handoff.reserve(domain, 10, False).leased for domain in ("a.example", "b.example"))
    first.answer = second.answer = taken
    rig.run(3700)
    assert all(isinstance(outcomes[-1], Delivered) for key, outcomes in rig.store.outcomes.items())
    assert len(rig.store.rows) <= 2  # what still hangs at the second


def test_a_greeting_can_cause_a_pause() -> None:
    rig = DeliveryRig(big((PAUSE,)))
    first, _ = two_domains(rig)
    refused = CannotConnect("answered 421 4.7.0 [TSS04]", reply=Reply(421, "[TSS04] no", "4.7.0"))
    first.greeting = lambda: refused
    rig.store.add(1, "x@a.example")
    rig.start().run(3)
    assert rig.store.hold_rows["big"].state == "paused"
    assert rig.store.rows[next(iter(rig.store.rows))].lease is None


def test_slowed_mail_is_sent_at_the_rules_rate_over_one_connection() -> None:
    rig = DeliveryRig(big((SLOW,)), connections_initial=3, idle_seconds=60.0)
    server, _ = two_domains(rig)
    refuse = [True]

    def answer(envelope: Any) -> Any:
        if refuse:
            refuse.pop()
            return answered(envelope, Reply(421, "slow down", "4.7.28"), "dot")
        return taken(envelope)

    server.answer = answer
    for email in range(1, 30):
        rig.store.add(email, "x@a.example")
    rig.start().run(120)
    after = [mail.at - START for mail in server.mails if mail.at > START + 5]
    assert 9 <= len(after) <= 13
    assert len(server.open) == 1
    assert rig.delivery.view()["big/a.big.example"]["slowed_to_per_minute"] == 6.0
    rig.run(900)
    assert not rig.store.rows


def test_after_a_slowdown_the_rate_rises_hour_by_hour() -> None:
    rig = DeliveryRig(big((attrs.evolve(SLOW, messages_per_minute=1.0),)), connections_initial=3, poll_seconds=30.0)
    server, _ = two_domains(rig)
    refuse = [True]

    def answer(envelope: Any) -> Any:
        return answered(envelope, Reply(421, "slow down", "4.7.28"), "dot") if refuse and refuse.pop() else taken(envelope)

    server.answer = answer
    for email in range(1, 400):
        rig.store.add(email, "x@a.example")
    rig.start().run(600)
    sent = []
    for _ in range(3):
        before = len(server.mails)
        rig.run(3600)
        sent.append(len(server.mails) - before)
    assert sent[:2] == pytest.approx([120, 240], rel=0.05)
    assert not rig.store.rows
