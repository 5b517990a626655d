"""What a mail asks of the connection that takes it: a verified server, one of certain hosts, the same way as last time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal

import attrs

from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.net.dns import Tlsa

Mode = Literal["clear", "opportunistic", "encrypted", "verified", "dane"]


@attrs.frozen
class Source:
    """An address of ours, the name that we greet with from there, and its share of the connections."""

    address: str
    ehlo: str
    weight: int = 1

    @classmethod
    def parse(cls, text: str) -> Source:
        """`192.0.2.1 out1.example.com 3`. ValueError says what is wrong."""
        address, ehlo, *weight = text.split()
        return cls(str(ip_address(address)), ehlo, max(1, int(weight[0])) if weight else 1)


@attrs.frozen
class DialOptions:
    """How one address is dialled. `tlsa`, `names`: for DANE. `ourselves`: it may be an address of this machine."""

    mode: Mode = "opportunistic"
    source: Source | None = None
    tlsa: tuple[Tlsa, ...] = ()
    names: tuple[str, ...] = ()
    ourselves: bool = False


@attrs.frozen
class ActualTls:
    """What is known of a connection. `operator`: its host is one of the operator's routes, who vouches for it."""

    host: str
    tls: bool
    mode: Mode
    operator: bool = False


@attrs.frozen
class TlsPolicy:
    """`verified`: the server's certificate has to be good. `policies`: by recipient domain, which hosts they allow."""

    verified: bool = False
    policies: tuple[tuple[str, Policy], ...] = ()
    because: str = ""

    def refusal(self, host: str) -> str | None:
        """Why a host may not be used at all."""
        for domain, policy in self.policies:
            if not policy.allows(host):
                return f"{host} is not named by the MTA-STS policy of {domain}"
        return None

    def met_by(self, line: ActualTls) -> bool:
        if not self.verified or (line.operator and line.tls):
            return True
        if line.mode == "dane":  # it goes before MTA-STS (8461 §2)
            return True
        return line.mode == "verified" and self.refusal(line.host) is None


@attrs.frozen
class ConnectionPreference:
    """`host`, `source`: rather this one, as last time."""

    demand: TlsPolicy = TlsPolicy()
    host: str | None = None
    source: str | None = None

    @classmethod
    def of(cls, parcel: Transaction) -> ConnectionPreference:
        """After silence the same host, which may recognise the message; after a refusal the same address of ours, which it knows."""
        host = source = None
        for each in parcel.recipients:
            if each.status == "uncertain":
                host = host or each.host
            source = source or each.source
        return ANY if host is None and source is None else cls(host=host, source=source)


ANY = ConnectionPreference()
NO_DEMAND = TlsPolicy()


def demand_of(required: bool, policies: Sequence[tuple[str, Policy]]) -> TlsPolicy:
    """Of a sending domain's own requirement and the policies of the recipients' domains."""
    if not required and not policies:
        return NO_DEMAND
    binding = tuple((domain, policy) for domain, policy in policies if policy.mode == "enforce")
    reasons = [f"{domain} demands by MTA-STS" for domain, _ in binding] + (["the sending domain requires"] if required else [])
    return TlsPolicy(required or bool(binding), binding, " and ".join(reasons))
