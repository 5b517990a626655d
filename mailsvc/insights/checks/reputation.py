"""Checks of reputation: the account's sending, its domain's DNS, and our servers. Pure; insights/reputation gathers the facts."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mailsvc.insights.checks.finding import Insight, listed
from mailsvc.mail.authentication import dmarc, spf

BOUNCES_WARN, BOUNCES_BAD = 2.0, 4.0  # percent of finished recipients
PERMANENT_WARN = 1.0  # percent of finished recipients
COMPLAINTS_WARN, COMPLAINTS_BAD = 0.08, 0.3  # percent of delivered recipients
SAMPLE_MIN = 100  # recipients below which a rate is not meaningful
YOUNG = 30  # days
JUMP = 2.0  # times the usual volume
JUMP_MIN = 1000  # recipients in a day


@attrs.frozen
class Record:
    """A DNS record of the sending domain, as the last check found it. `weak`: correct, but could be stricter."""

    purpose: str
    name: str
    correct: bool
    weak: bool
    message: str
    expected: str = ""
    unanswered: bool = False
    found: tuple[str, ...] = ()  # the values in DNS

    @property
    def asks_for_reports(self) -> bool:
        policy = dmarc.only(self.found)
        return policy is None or bool(policy.reports)


@attrs.frozen
class Server:
    """A sending IP address and its EHLO name."""

    address: str
    ehlo: str
    resolves_back: bool  # whether the EHLO name resolves to this address
    ptr_names: tuple[str, ...]


@attrs.frozen
class Listed:
    """An address or domain that is on a blocklist."""

    name: str
    blocklist: str


@attrs.frozen
class Rates:
    """Recipients in the last seven days. `sent_today`, and `usual_per_day` in the seven days before."""

    delivered: int
    bounced: int
    permanently: int  # of the bounced ones
    complained: int
    sent_today: int = 0
    usual_per_day: float = 0.0


@attrs.frozen
class Facts:
    """None: unknown. `receives`: whether the domain can receive mail; `null_mx`: it declares that it accepts none."""

    domain: str
    age_days: int | None = None
    records: tuple[Record, ...] = ()
    receives: bool | None = None
    null_mx: bool = False
    servers: tuple[Server, ...] = ()
    blocklists: tuple[str, ...] = ()  # that answered
    listed: tuple[Listed, ...] = ()
    rates: Rates | None = None
    logo: bool | None = None  # whether it publishes a BIMI record


def of_facts(facts: Facts) -> list[Insight]:
    return [found for check in CHECKS for found in check(facts)]


def records(facts: Facts) -> Iterator[Insight]:
    """SPF, DKIM, DMARC and the other records of the domain."""
    for one in facts.records:
        policy = one.purpose == "DMARC"
        if one.unanswered:
            continue
        if not one.correct:
            why = (
                "Large receivers require a DMARC policy."
                if policy
                else "Receivers reject or distrust email that its domain does not authenticate."
            )
            title = "Publish a DMARC policy" if policy else f"The {one.purpose} record is not correct"
            remedy = f"Publish {one.name} {one.expected}" if one.expected else "Fix it as described on the domain's page."
            yield Insight("attention", title, one.message, why, remedy)
        elif one.weak:
            title = "The DMARC policy could be stricter" if policy else f"The {one.purpose} record could be improved"
            why = "A policy of “none” does not protect the domain." if policy else "Receivers take it into account."
            yield Insight("better", title, one.message, why, "Follow the advice on the domain's page, one step at a time.")
        elif one.purpose == "SPF" and (qualifier := _permissive_all(one.found)):
            allows_all = qualifier == "+"
            effect = "allows everyone to send" if allows_all else "neither allows nor forbids other senders"
            seen = f"It ends in {qualifier}all, which {effect}."
            why = "A record that rejects nobody proves nothing, and receivers treat it accordingly."
            yield Insight("attention" if allows_all else "better", "The SPF record rejects nobody", seen, why, "End it in -all or ~all.")
        elif policy and not one.asks_for_reports:
            why = "Without reports, you don't learn who else sends in your name."
            seen = f"{one.message} It has no rua=."
            yield Insight("better", "Request DMARC reports", seen, why, "Add rua=mailto: with an address that someone reads.")
        else:
            title = "The domain has a DMARC policy" if policy else f"The {one.purpose} record is correct"
            yield Insight("great", title, one.message)


def _permissive_all(found: tuple[str, ...]) -> str:
    """The qualifier of `all` in the SPF record among these values, if it is + or ?; otherwise empty."""
    for text in filter(spf.is_spf, found):
        try:
            ends = [one.qualifier for one in spf.parse(text).mechanisms if one.name == "all"]
        except spf.SpfError:
            continue
        if ends and ends[0] in "+?":
            return ends[0]
    return ""


def receiving(facts: Facts) -> Iterator[Insight]:
    if facts.null_mx:
        why = "Receivers reject email from a domain that accepts none itself."
        yield Insight(
            "attention", "The domain does not accept email", f"{facts.domain} has a null MX record.", why, "Add an MX record."
        )  # 7505 §4.2
    elif facts.receives is False:
        why = "Receivers reject email from a domain that cannot be replied to."
        yield Insight(
            "attention",
            "The domain cannot receive email",
            f"{facts.domain} has neither an MX nor an address record.",
            why,
            "Add an MX record.",
        )
    elif facts.receives:
        yield Insight("great", "The domain can receive email", f"{facts.domain} has a mail server.")


def pointers(facts: Facts) -> Iterator[Insight]:
    """Forward-confirmed reverse DNS, which only the operator can fix."""
    wrong = [one for one in facts.servers if not one.resolves_back or one.ehlo.lower() not in one.ptr_names]
    for one in wrong:
        pointer = f"its PTR record points to {listed(one.ptr_names)}" if one.ptr_names else "it has no PTR record"
        seen = f"{one.address} uses the EHLO name {one.ehlo}, but {pointer if one.resolves_back else f'{one.ehlo} does not resolve to it'}."
        why = "Large receivers reject email from such an IP address."
        yield Insight("attention", "A sending server has incorrect reverse DNS", seen, why, "Contact the operator of this service.")
    if facts.servers and not wrong:
        yield Insight("great", "The sending servers have correct reverse DNS", f"{listed([one.ehlo for one in facts.servers])}.")


def blocklists(facts: Facts) -> Iterator[Insight]:
    for one in facts.listed:
        own = one.name == facts.domain or ("." in one.name and not one.name.replace(".", "").isdigit() and ":" not in one.name)
        delist = f"Find the reason on the website of {one.blocklist}, fix it, and request removal."
        remedy = delist if own else "Contact the operator of this service."
        yield Insight(
            "attention",
            "On a blocklist",
            f"{one.name} is on {one.blocklist}.",
            "Many receivers reject email from listed names and addresses.",
            remedy,
        )
    if facts.blocklists and not facts.listed:
        yield Insight("great", "Not on any blocklist", f"Checked {listed(facts.blocklists)}.")


def rates(facts: Facts) -> Iterator[Insight]:
    """The account's recent sending, by which receivers judge its next email."""
    of = facts.rates
    if of is None:
        return
    finished = of.delivered + of.bounced
    if finished >= SAMPLE_MIN:
        yield from _bounces(100 * of.bounced / finished, 100 * of.permanently / finished)
    if of.delivered >= SAMPLE_MIN:
        yield from _complaints(100 * of.complained / of.delivered)
    if of.usual_per_day and of.sent_today >= JUMP_MIN and of.sent_today > JUMP * of.usual_per_day:
        seen = f"{of.sent_today:,} recipients today, {of.usual_per_day:,.0f} on a usual day."
        yield Insight(
            "better",
            "You send much more than usual",
            seen,
            "Receivers defer email if the volume grows too fast.",
            "At most double the volume from day to day.",
        )


def _bounces(bounced: float, permanently: float) -> Iterator[Insight]:
    seen = f"{bounced:.1f} % bounced in the last seven days."
    why = f"Above {BOUNCES_BAD:g} %, providers start to reject everything."
    remedy = "Only email confirmed addresses."
    if bounced > BOUNCES_BAD:
        yield Insight("attention", "Your bounce rate is too high", seen, why, remedy)
    elif bounced > BOUNCES_WARN:
        yield Insight("better", "Your bounce rate is high", seen, why, remedy)
    elif permanently > PERMANENT_WARN:
        seen = f"{permanently:.1f} % hard-bounced in the last seven days."
        yield Insight("better", "Many addresses do not exist", seen, "It looks as if you bought or guessed them.", remedy)
    else:
        yield Insight("great", "Your bounce rate is low", seen)


def _complaints(complained: float) -> Iterator[Insight]:
    seen = f"{complained:.2f} % of your email was reported as spam in the last seven days."
    why = f"Large receivers reject email from {COMPLAINTS_BAD:g} % on, and put it into the spam folder above {COMPLAINTS_WARN:g} %."
    remedy = "Make unsubscribing easy, and only email people who opted in."
    if complained >= COMPLAINTS_BAD:
        yield Insight("attention", "Your complaint rate is too high", seen, why, remedy)
    elif complained > COMPLAINTS_WARN:
        yield Insight("better", "Your complaint rate is high", seen, why, remedy)
    else:
        yield Insight("great", "Your complaint rate is low", seen)


def age(facts: Facts) -> Iterator[Insight]:
    if facts.age_days is not None and facts.age_days < YOUNG:
        days = facts.age_days
        seen = f"{facts.domain} was added {f'{days} day' + 's' * (days != 1) + ' ago' if days else 'today'}."
        yield Insight(
            "better", "The domain is new", seen, "Receivers do not know it yet.", "Start with a low volume, and increase it every day."
        )


def logo(facts: Facts) -> Iterator[Insight]:
    """BIMI; receivers only use it with an enforced DMARC policy."""
    enforced = any(one.purpose == "DMARC" and one.correct and not one.weak and not one.unanswered for one in facts.records)
    if facts.logo:
        yield Insight("great", "The domain publishes a logo", "It has a BIMI record.")
    elif facts.logo is False and enforced:
        remedy = f"Publish default._bimi.{facts.domain} TXT v=BIMI1; l=https://…/logo.svg"
        yield Insight("better", "Publish a logo", "There is no BIMI record.", "Some receivers show it next to the email.", remedy)


CHECKS = (records, receiving, pointers, blocklists, rates, age, logo)
