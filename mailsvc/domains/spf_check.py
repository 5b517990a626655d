"""Evaluates SPF (RFC 7208 §4) with the limits that receivers apply."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Literal

import attrs

from mailsvc.mail.authentication import spf
from mailsvc.mail.authentication.spf import Address, CheckHost, Mechanism, SpfError
from mailsvc.net.address_guard import is_address
from mailsvc.net.dns import Mx, Records, Resolver, Temporary

TERMS = 10  # §4.6.4
VOID = 2  # lookups without an answer (§4.6.4)
MX_HOSTS = 10
PTR_NAMES = 10

Verdict = Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror"]
_VERDICTS: dict[str, Verdict] = {"+": "pass", "-": "fail", "~": "softfail", "?": "neutral"}


@attrs.frozen
class Result:
    """`why`: a phrase with the term that decided or the error. `terms` and `void`: the lookups that were counted."""

    verdict: Verdict
    why: str
    terms: int = 0
    void: int = 0


class _Ended(Exception):
    """Ends the evaluation with this verdict."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        self.verdict: Verdict = verdict
        self.why = why


async def check(resolver: Resolver, address: Address, domain: str, sender: str, texts: Sequence[str] | None = None) -> Result:
    """check_host() (§4.1). `texts`: the TXT records of `domain`, if already known."""
    evaluation = _Evaluation(resolver, CheckHost(address, sender))
    try:
        verdict, why = await evaluation.domain(domain, texts)
    except _Ended as ended:
        verdict, why = ended.verdict, ended.why
    except SpfError as error:
        verdict, why = "permerror", str(error)
    return Result(verdict, why, evaluation.terms, evaluation.void)


def only_record(texts: Sequence[str]) -> str | None:
    """The SPF record among TXT records. Raises SpfError if there are several (§4.5)."""
    found = [text for text in texts if spf.is_spf(text)]
    if len(found) > 1:
        raise SpfError(f"there are {len(found)} SPF records, but only one is allowed")
    return found[0] if found else None


@attrs.define
class _Evaluation:
    resolver: Resolver
    check: CheckHost
    terms: int = 0
    void: int = 0

    async def domain(self, domain: str, texts: Sequence[str] | None = None) -> tuple[Verdict, str]:
        if texts is None:
            texts = await self._found(self.resolver.txt(domain)) if "." in domain else ()  # §4.3: with one label, there is no record
        text = only_record(texts)
        if text is None:
            return "none", f"{domain} has no SPF record"
        record = spf.parse(text)
        for mechanism in record.mechanisms:
            if await self._matches(mechanism, domain):
                return _VERDICTS[mechanism.qualifier], f"{_text_of(mechanism)} in the record of {domain}"
        if record.redirect is None:
            return "neutral", f"nothing in the record of {domain} matches"  # §4.7
        self._count_term(f"redirect={record.redirect}")
        target = spf.expand(record.redirect, domain, self.check)
        verdict, why = await self.domain(target)
        if verdict == "none":
            raise _Ended("permerror", f"redirect points to {target}, which has no SPF record")  # §6.1
        return verdict, why

    async def _matches(self, mechanism: Mechanism, domain: str) -> bool:
        if mechanism.name in spf.COUNTED:
            self._count_term(_text_of(mechanism))
        target = spf.expand(mechanism.domain, domain, self.check) if mechanism.domain else domain
        match mechanism.name:
            case "all":
                return True
            case "ip4" | "ip6":
                network = mechanism.network
                return network is not None and self.check.address.version == network.version and self.check.address in network
            case "include":
                return await self._includes(target)
            case "a":
                return self._contains(await self._addresses(target), mechanism)
            case "mx":
                return await self._matches_mx(target, mechanism)
            case "ptr":
                return await self._matches_ptr(target)
        return bool(await self._addresses(target, version=4))  # exists: IPv4, even if the mail comes over IPv6 (§5.7)

    async def _includes(self, target: str) -> bool:
        verdict, _ = await self.domain(target)
        if verdict == "none":
            raise _Ended("permerror", f"include:{target} has no SPF record")  # §5.2
        return verdict == "pass"

    async def _matches_mx(self, target: str, mechanism: Mechanism) -> bool:
        hosts: Sequence[Mx] = await self._values(self.resolver.mx(target))
        if len(hosts) > MX_HOSTS:
            raise _Ended("permerror", f"{target} has more than {MX_HOSTS} MX records")
        for host in hosts:
            if self._contains(await self._addresses(host.host), mechanism):
                return True
        return False

    async def _matches_ptr(self, target: str) -> bool:
        """§5.5: a name of the address counts if it has the address too. Failed lookups do not match."""
        found = await self.resolver.ptr(str(self.check.address))
        for name in found.values[:PTR_NAMES] if isinstance(found, Records) else ():
            if name == target.lower() or name.endswith(f".{target.lower()}"):
                addresses = await self.resolver.addresses(name)
                if isinstance(addresses, Records) and spf.within(self.check.address, addresses.values, 32, 128):
                    return True
        return False

    def _contains(self, found: Sequence[str], mechanism: Mechanism) -> bool:
        return spf.within(self.check.address, tuple(found), mechanism.four, mechanism.six)

    async def _addresses(self, name: str, version: int | None = None) -> Sequence[str]:
        """The addresses of one family. A name that looks like an IP address is only a name here, and does not exist."""
        found: Any = () if is_address(name) else await self._found(self.resolver.addresses(name))
        return self._answer([each for each in found if ip_address(each).version == (version or self.check.address.version)])

    async def _values(self, look_up: Any) -> Sequence[Any]:
        return self._answer(await self._found(look_up))

    async def _found(self, look_up: Any) -> Sequence[Any]:
        found = await look_up
        if isinstance(found, Temporary):
            raise _Ended("temperror", found.reason)
        return found.values if isinstance(found, Records) else ()

    def _answer(self, values: Sequence[Any]) -> Sequence[Any]:
        """Counts an answer without records (§4.6.4)."""
        self.void += not values
        if self.void > VOID:
            raise _Ended("permerror", f"more than {VOID} lookups have no answer")
        return values

    def _count_term(self, term: str) -> None:
        self.terms += 1
        if self.terms > TERMS:
            raise _Ended("permerror", f"it needs more than {TERMS} lookups ({term} exceeds the limit)")


def _text_of(mechanism: Mechanism) -> str:
    sign = "" if mechanism.qualifier == "+" else mechanism.qualifier
    if mechanism.network is not None:
        return f"{sign}{mechanism.name}:{mechanism.network}"
    return f"{sign}{mechanism.name}:{mechanism.domain}" if mechanism.domain else f"{sign}{mechanism.name}"
