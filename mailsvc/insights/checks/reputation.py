"""Checks of reputation: the account's sending, its domain's DNS, and our servers. Pure; insights/reputation gathers the facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    """A DNS record of the sending domain, as the last check found it. `advised`: the value that we recommend."""

    purpose: str
    name: str
    correct: bool
    message: str
    expected: str = ""
    unanswered: bool = False
    found: tuple[str, ...] = ()  # the values in DNS
    advised: str = ""

    @property
    def lacks_reports(self) -> bool:
        """Whether a DMARC policy requests no reports, although the one that we recommend does."""
        policy = dmarc.only(self.found)
        return "rua=" in self.advised and policy is not None and not policy.reports

    @property
    def enforced(self) -> bool:
        """Whether a DMARC policy has an effect on delivery, for subdomains too."""
        policy = dmarc.only(self.found)
        return policy is not None and not policy.testing and "none" not in (policy.policy, policy.subdomains)


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
    """Recipients in the last seven days. `sent_today`, and `usual_per_day` before today."""

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
    own_failures: int = 0  # emails sent by this service that failed DMARC, as receivers report
    not_tracked: str | None = None  # why nothing is tracked although it is switched on, as a sentence
    tracking_awaits_record: bool = False  # whether it would be tracked if the record were correct


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
        elif one.purpose == "SPF" and (qualifier := _permissive_all(one.found)):
            allows_all = qualifier == "+"
            effect = "allows everyone to send" if allows_all else "neither allows nor forbids other senders"
            seen = f"It ends in {qualifier}all, which {effect}."
            why = "A record that rejects nobody proves nothing, and receivers treat it accordingly."
            yield Insight("attention" if allows_all else "better", "The SPF record rejects nobody", seen, why, "End it in -all or ~all.")
        elif policy and one.lacks_reports:
            why = "Without reports, you don't learn who else sends in your name."
            yield Insight("better", "Request DMARC reports", f"{one.message} It has no rua=.", why, f"Publish {one.name} {one.advised}")
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


def reported(facts: Facts) -> Iterator[Insight]:
    """What receivers report about mail that this service sent."""
    if facts.own_failures:
        emails = "1 email" if facts.own_failures == 1 else f"{facts.own_failures:,} emails"
        seen = f"Receivers report that {emails} sent by this service failed DMARC."
        why = "Receivers reject such email, or put it into the spam folder."
        remedy = "Correct the domain's DNS records, and keep those of a replaced DKIM key for a week."
        yield Insight("attention", "Your email fails DMARC", seen, why, remedy)


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
        remedy = _delist(one) if one.name == facts.domain else "Contact the operator of this service."
        yield Insight(
            "attention",
            "On a blocklist",
            f"{one.name} is on {one.blocklist}.",
            "Many receivers reject email from listed names and addresses.",
            remedy,
        )
    if facts.blocklists and not facts.listed:
        yield Insight("great", "Not on any blocklist", f"Checked {listed(facts.blocklists)}.")


def of_linked(listed: Sequence[Listed]) -> list[Insight]:
    """Hosts on a blocklist that one email links to."""
    title, why = "A link leads to a host on a blocklist", "Receivers reject or filter email with such links."
    remedy = " Or link to another host."
    return [Insight("attention", title, f"{one.name} is on {one.blocklist}.", why, _delist(one) + remedy) for one in listed]


def _delist(one: Listed) -> str:
    return f"Find the reason on the website of {one.blocklist}, fix it, and request removal."


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
    enforced = any(one.purpose == "DMARC" and one.correct and one.enforced and not one.unanswered for one in facts.records)
    if facts.logo:
        yield Insight("great", "The domain publishes a logo", "It has a BIMI record.")
    elif facts.logo is False and enforced:
        remedy = f"Publish default._bimi.{facts.domain} TXT v=BIMI1; l=https://…/logo.svg"
        yield Insight("better", "Publish a logo", "There is no BIMI record.", "Some receivers show it next to the email.", remedy)


def tracked(facts: Facts) -> Iterator[Insight]:
    """Whether tracking that is switched on has an effect."""
    if facts.not_tracked is not None:
        publish = "Publish the record that the domain's page shows, or switch tracking off."
        remedy = publish if facts.tracking_awaits_record else "Switch tracking off."
        yield Insight("better", "Tracking is on but not active", facts.not_tracked, "Emails are sent with their original links.", remedy)


CHECKS = (records, reported, receiving, pointers, blocklists, rates, age, logo, tracked)
