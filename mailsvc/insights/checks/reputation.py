"""How an account, its domain and our servers stand with receivers: judged from facts that somebody else has gathered."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mailsvc.insights.checks.finding import Insight, listed
from mailsvc.mail.authentication import dmarc, spf

BOUNCES_WARN, BOUNCES_BAD = 2.0, 4.0  # percent of what was finished
GONE_WARN = 1.0  # percent of it that bounced for good
COMPLAINTS_WARN, COMPLAINTS_BAD = 0.08, 0.3  # percent of what was delivered
ENOUGH = 100  # finished recipients below which a rate says nothing
YOUNG = 30  # days
JUMP = 2.0  # times as much as usual
JUMP_LEAST = 1000  # recipients in a day


@attrs.frozen
class Record:
    """One DNS record of the sending domain, as the last check found it. `weak`: it is there, and could be better."""

    purpose: str
    name: str
    there: bool
    weak: bool
    told: str
    wanted: str = ""
    unanswered: bool = False
    found: tuple[str, ...] = ()  # what stands there

    @property
    def asks_for_reports(self) -> bool:
        policy = dmarc.only(self.found)
        return policy is None or bool(policy.reports)


@attrs.frozen
class Server:
    """An address that mail leaves from, and the name that it greets with. `back`: the names that its PTR record leads to."""

    address: str
    ehlo: str
    leads_here: bool  # whether that name has this address
    back: tuple[str, ...]


@attrs.frozen
class Listed:
    """`what`, an address or a domain, on a block list."""

    what: str
    by: str


@attrs.frozen
class Rates:
    """Of the last seven days, counted by recipients. `today`, and `usual`: a day of the week before."""

    delivered: int
    bounced: int
    gone: int  # of these, for good
    complained: int
    today: int = 0
    usual: float = 0.0


@attrs.frozen
class Facts:
    """None: not known. `receives`: whether answers to the From domain have somewhere to go; `refuses`: it says that it takes no mail."""

    domain: str
    age_days: int | None = None
    records: tuple[Record, ...] = ()
    receives: bool | None = None
    refuses: bool = False
    servers: tuple[Server, ...] = ()
    lists: tuple[str, ...] = ()  # that answered
    listed: tuple[Listed, ...] = ()
    rates: Rates | None = None
    logo: bool | None = None  # whether it publishes one (BIMI)


def of_standing(facts: Facts) -> list[Insight]:
    return [found for check in CHECKS for found in check(facts)]


def records(facts: Facts) -> Iterator[Insight]:
    """SPF, DKIM, DMARC and what else the domain has to publish."""
    for one in facts.records:
        policy = one.purpose == "DMARC"
        if one.unanswered:
            continue
        if not one.there:
            why = (
                "Large receivers ask for a DMARC policy."
                if policy
                else "Receivers refuse or distrust mail whose domain does not vouch for it."
            )
            title = "Publish a DMARC policy" if policy else f"The {one.purpose} record is not right"
            remedy = f"Publish {one.name} {one.wanted}" if one.wanted else "Mend it as the page of the domain says."
            yield Insight("attention", title, one.told, why, remedy)
        elif one.weak:
            title = "The DMARC policy could be stronger" if policy else f"The {one.purpose} record could be better"
            why = "A policy that asks for nothing protects nobody." if policy else "Receivers weigh it."
            yield Insight("better", title, one.told, why, "Follow the advice on the page of the domain, a step at a time.")
        elif one.purpose == "SPF" and (lets := _lets_everybody(one.found)):
            bad = lets == "+"
            seen = f"It ends in {lets}all, which {'lets everybody send' if bad else 'says nothing of who else may send'}."
            why = "A record that refuses nobody proves nothing, and receivers count it so."
            yield Insight("attention" if bad else "better", "The SPF record refuses nobody", seen, why, "End it in -all or ~all.")
        elif policy and not one.asks_for_reports:
            why = "Nobody then tells the domain's owner who else sends in its name."
            seen = f"{one.told} It has no rua=."
            yield Insight("better", "Ask for DMARC reports", seen, why, "Add rua=mailto: and an address that somebody reads.")
        else:
            title = "The domain has a DMARC policy" if policy else f"The {one.purpose} record is right"
            yield Insight("great", title, one.told)


def _lets_everybody(found: tuple[str, ...]) -> str:
    """Whether one of these is an SPF record that says of everybody else that they may send (+), or nothing (?)."""
    for text in filter(spf.is_spf, found):
        try:
            ends = [one.qualifier for one in spf.parse(text).mechanisms if one.name == "all"]
        except spf.SpfError:
            continue
        if ends and ends[0] in "+?":
            return ends[0]
    return ""


def receiving(facts: Facts) -> Iterator[Insight]:
    if facts.refuses:
        why = "Receivers refuse mail from a domain that takes none itself."
        yield Insight(
            "attention", "The domain takes no mail", f"{facts.domain} has a null MX record.", why, "Give it an MX record."
        )  # 7505 §4.2
    elif facts.receives is False:
        why = "Receivers refuse mail from a domain that nobody could answer."
        yield Insight(
            "attention", "The domain cannot receive mail", f"{facts.domain} has neither MX nor address.", why, "Give it an MX record."
        )
    elif facts.receives:
        yield Insight("great", "The domain can receive mail", f"{facts.domain} has somewhere for answers to go.")


def pointers(facts: Facts) -> Iterator[Insight]:
    """Forward-confirmed reverse DNS, which is the operator's to mend."""
    wrong = [one for one in facts.servers if not one.leads_here or one.ehlo.lower() not in one.back]
    for one in wrong:
        leads = f"its PTR record leads to {listed(one.back)}" if one.back else "it has no PTR record"
        seen = f"{one.address} greets as {one.ehlo}, but {leads if one.leads_here else f'{one.ehlo} does not lead back to it'}."
        why = "Large receivers refuse mail from such an address."
        yield Insight("attention", "A sending server has no name that leads back", seen, why, "Tell the operator of this service.")
    if facts.servers and not wrong:
        yield Insight("great", "The sending servers have names that lead back", f"{listed([one.ehlo for one in facts.servers])}.")


def block_lists(facts: Facts) -> Iterator[Insight]:
    for one in facts.listed:
        own = one.what == facts.domain or ("." in one.what and not one.what.replace(".", "").isdigit() and ":" not in one.what)
        ask = f"Find out why on the pages of {one.by}, stop it, and ask to be taken off."
        remedy = ask if own else "Tell the operator of this service."
        yield Insight("attention", "On a block list", f"{one.what} is on {one.by}.", "Many receivers refuse what it lists.", remedy)
    if facts.lists and not facts.listed:
        yield Insight("great", "On no block list", f"Asked {listed(facts.lists)}.")


def rates(facts: Facts) -> Iterator[Insight]:
    """What the account has sent lately; receivers judge a mail by those before it."""
    of = facts.rates
    if of is None:
        return
    finished = of.delivered + of.bounced
    if finished >= ENOUGH:
        yield from _bounces(100 * of.bounced / finished, 100 * of.gone / finished)
    if of.delivered >= ENOUGH:
        yield from _complaints(100 * of.complained / of.delivered)
    if of.usual and of.today >= JUMP_LEAST and of.today > JUMP * of.usual:
        seen = f"{of.today:,} recipients today, {of.usual:,.0f} on a usual day."
        yield Insight(
            "better", "Much more is sent than usual", seen, "Receivers put off what grows too fast.", "Grow by no more than twice a day."
        )


def _bounces(bounced: float, gone: float) -> Iterator[Insight]:
    seen = f"{bounced:.1f} % bounced in the last seven days."
    why = f"Above {BOUNCES_BAD:g} % providers begin to refuse everything."
    remedy = "Write only to addresses that people confirmed."
    if bounced > BOUNCES_BAD:
        yield Insight("attention", "Too much of your mail bounces", seen, why, remedy)
    elif bounced > BOUNCES_WARN:
        yield Insight("better", "More of your mail bounces than should", seen, why, remedy)
    elif gone > GONE_WARN:
        seen = f"{gone:.1f} % of the last seven days bounced for good."
        yield Insight("better", "Many addresses do not exist", seen, "It looks as if they were bought or guessed.", remedy)
    else:
        yield Insight("great", "Little of your mail bounces", seen)


def _complaints(complained: float) -> Iterator[Insight]:
    seen = f"{complained:.2f} % of the last seven days' mail was marked as spam."
    why = f"From {COMPLAINTS_BAD:g} % on large receivers refuse mail, and above {COMPLAINTS_WARN:g} % they put it into the spam folder."
    remedy = "Make leaving easier than complaining, and write only to who asked for it."
    if complained >= COMPLAINTS_BAD:
        yield Insight("attention", "Too many people complain", seen, why, remedy)
    elif complained > COMPLAINTS_WARN:
        yield Insight("better", "More people complain than should", seen, why, remedy)
    else:
        yield Insight("great", "Few people complain", seen)


def age(facts: Facts) -> Iterator[Insight]:
    if facts.age_days is not None and facts.age_days < YOUNG:
        days = facts.age_days
        seen = f"{facts.domain} was added {f'{days} day' + 's' * (days != 1) + ' ago' if days else 'today'}."
        yield Insight(
            "better", "The domain is new here", seen, "Receivers do not know it yet.", "Begin with a little, and send more each day."
        )


def logo(facts: Facts) -> Iterator[Insight]:
    """BIMI, which receivers look at only where DMARC asks for something."""
    strict = any(one.purpose == "DMARC" and one.there and not one.weak and not one.unanswered for one in facts.records)
    if facts.logo:
        yield Insight("great", "The domain publishes a logo", "It has a BIMI record.")
    elif facts.logo is False and strict:
        remedy = f"Publish default._bimi.{facts.domain} TXT v=BIMI1; l=https://…/logo.svg"
        yield Insight("better", "Publish a logo", "There is no BIMI record.", "Some receivers show it beside the mail.", remedy)


CHECKS = (records, receiving, pointers, block_lists, rates, age, logo)
