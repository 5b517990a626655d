"""What a mail needs of its connection: the TLS policy, and the host or source that had it last. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from ipaddress import ip_address
from typing import Literal

import attrs

from mailsvc.delivery.shaping import DEFAULT_POOL, pool_name
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.net.dns import Tlsa

_SAME_HOST = 2  # attempts after which a host that is silent after the message is no longer preferred
Mode = Literal["clear", "opportunistic", "encrypted", "verified", "dane"]


@attrs.frozen
class Source:
    """A source address with its EHLO name and its share of the connections.

    `pool`: which mail it sends; empty for the default pool. `since`: the day from which it warms up; None if it is warm.
    """

    address: str
    ehlo: str
    weight: int = 1
    pool: str = ""
    since: date | None = None

    @classmethod
    def parse(cls, text: str) -> Source:
        """`192.0.2.1 out1.example.com 3 pool=bulk since=2026-11-20`. ValueError says what is wrong."""
        address, ehlo, *more = text.split()
        weight = more.pop(0) if more and "=" not in more[0] else "1"
        options = dict(each.split("=", 1) for each in more)
        pool, since = options.pop("pool", DEFAULT_POOL), options.pop("since", None)
        if options or len(more) != len({each.partition("=")[0] for each in more}):
            raise ValueError("an option is unknown or given twice")
        if int(weight) < 1:
            raise ValueError("a source without a share of the connections")
        day = None if since is None else date.fromisoformat(since)
        return cls(str(ip_address(address)), ehlo, int(weight), pool_name(pool), day)


@attrs.frozen
class DialOptions:
    """How to dial one address. `preferred`: the source that had the mail last, `source`: the one to use. `tlsa`, `names`: for DANE.

    `ourselves`: it may be an address of this machine.
    """

    mode: Mode = "opportunistic"
    source: Source | None = None
    tlsa: tuple[Tlsa, ...] = ()
    names: tuple[str, ...] = ()
    ourselves: bool = False
    preferred: str | None = None


@attrs.frozen
class ActualTls:
    """The security of an open connection. `operator`: its host comes from a route setting, and the operator vouches for it.

    `dane`: TLSA records were looked up.
    """

    host: str
    tls: bool
    mode: Mode
    operator: bool = False
    dane: bool = False


@attrs.frozen
class TlsPolicy:
    """`verified`: the server's certificate must be valid. `policies`: the hosts that are allowed, by recipient domain (MTA-STS).

    `dane`: TLSA records must be looked up, because DNSSEC validated the MX records of a recipient domain. `signed`: those of
    all recipient domains. `testing`: policies that are only reported about.
    """

    verified: bool = False
    policies: tuple[tuple[str, Policy], ...] = ()
    because: str = ""
    dane: bool = False
    signed: bool = False
    testing: tuple[tuple[str, Policy], ...] = attrs.field(default=(), eq=False)

    @property
    def strict(self) -> bool:
        """Whether a connection may not meet it."""
        return self.verified or self.dane

    def refusal(self, host: str) -> str | None:
        """Why a host may not be used at all."""
        for domain, policy in self.policies:
            if not policy.allows(host):
                return f"{host} is not named by the MTA-STS policy of {domain}"
        return None

    def met_by(self, actual: ActualTls) -> bool:
        if self.dane and not (actual.dane or actual.operator):
            return False
        if not self.verified or (actual.operator and actual.tls):
            return True
        if actual.mode == "dane" and self.signed:  # it takes precedence over MTA-STS (8461 §2)
            return True
        return actual.mode in ("verified", "dane") and self.refusal(actual.host) is None


@attrs.frozen
class ConnectionPreference:
    """`tls_policy` is required. `host` and `source` are preferred: they had the mail last."""

    tls_policy: TlsPolicy = TlsPolicy()
    host: str | None = None
    source: str | None = None

    @classmethod
    def of(cls, transaction: Transaction) -> ConnectionPreference:
        """After silence the same host twice: it may recognize the message. After a refusal the same source, which the server knows."""
        host = source = None
        for each in transaction.recipients:
            if each.status == "uncertain" and each.attempts <= _SAME_HOST:
                host = host or each.host
            source = source or each.source
        return ANY if host is None and source is None else cls(host=host, source=source)


ANY = ConnectionPreference()
NO_POLICY = TlsPolicy()


def required_policy(required: bool, policies: Sequence[tuple[str, Policy]], signed: Collection[bool | None] = ()) -> TlsPolicy:
    """From the sending domain's setting, the MTA-STS policies of the recipients' domains, and whether their MX records are signed.

    None: that is not known now.
    """
    dane = any(each is not False for each in signed)
    if not required and not policies and not dane:
        return NO_POLICY
    enforced = tuple((domain, policy) for domain, policy in policies if policy.mode == "enforce")
    reasons = [f"{domain} requires it by MTA-STS" for domain, _ in enforced] + (["the sending domain requires it"] if required else [])
    if dane and not reasons:
        reasons.append("DNSSEC protects the recipient's domain")
    testing = tuple((domain, policy) for domain, policy in policies if policy.mode == "testing")
    return TlsPolicy(required or bool(enforced), enforced, " and ".join(reasons), dane, dane and all(signed), testing)
