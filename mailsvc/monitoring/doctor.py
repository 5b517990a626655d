"""What keeps mail from going out well, looked for before mail does: each finding with what to do about it.

The looking is given as functions, so that this knows neither sockets nor tables. The command: cli_doctor.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

import attrs

from mailsvc.net.dns import Mx, NxDomain, Records, Temporary, reversed_name

State = Literal["good", "doubtful", "bad"]

_CLOCK = 5.0  # seconds that our clock may be off
_EXPIRES = timedelta(days=14)


@attrs.frozen
class Finding:
    """`remedy` is empty when there is nothing to do."""

    check: str
    state: State
    found: str
    remedy: str = ""


class Names(Protocol):
    """dns.Resolver"""

    async def mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary: ...
    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...
    async def ptr(self, address: str) -> Records[str] | NxDomain | Temporary: ...


@attrs.frozen
class Certificate:
    """The relay's."""

    expires: datetime
    names: tuple[str, ...]


@attrs.frozen
class Doctor:
    """`identities`: our addresses and EHLO names; empty addresses are looked up. `knock`: a phrase why a port does not greet, or None."""

    names: Names
    identities: Sequence[tuple[str | None, str]]
    knock: Callable[[str, int], Awaitable[str | None]]
    probe: str  # a domain whose mail exchangers everybody can reach
    dnsbls: Collection[str]
    clock_ahead: Callable[[], Awaitable[float]]
    database: Callable[[], Awaitable[Mapping[str, str]]]
    pool: int
    certificate: Callable[[], Certificate | str | None]
    now: Callable[[], datetime]

    async def examine(self) -> list[Finding]:
        """All of it; what fails by itself is a finding too."""
        checks = (self.dns, self.port25, self.pointers, self.lists, self.clock, self.postgres, self.tls)
        found: list[Finding] = []
        for check in checks:
            try:
                found += await check()
            except Exception as error:
                found.append(Finding(check.__name__, "bad", f"The check failed: {error or type(error).__name__}.", "See to what it says."))
        return found

    async def dns(self) -> list[Finding]:
        answer = await self.names.mx(self.probe)
        if isinstance(answer, Records) and answer.values:
            return [Finding("dns", "good", f"The mail exchangers of {self.probe} were looked up.")]
        why = answer.reason if isinstance(answer, Temporary) else "it says that there are none"
        remedy = "Let a resolver answer on /etc/resolv.conf's or delivery.nameservers' addresses, port 53 over UDP and TCP."
        return [Finding("dns", "bad", f"The mail exchangers of {self.probe} could not be looked up: {why}.", remedy)]

    async def port25(self) -> list[Finding]:
        """Out to others, by address family."""
        answer = await self.names.mx(self.probe)
        hosts = sorted(answer.values, key=lambda mx: mx.preference) if isinstance(answer, Records) else []
        found = [await self.names.addresses(mx.host) for mx in hosts[:2]]
        addresses = [address for each in found if isinstance(each, Records) for address in each.values]
        return [
            await self._port25(family, [each for each in addresses if (":" in each) == (family == "IPv6")]) for family in ("IPv4", "IPv6")
        ]

    async def _port25(self, family: str, addresses: list[str]) -> Finding:
        check = f"port 25 over {family}"
        if not addresses:
            return Finding(check, "doubtful", f"No {family} address of {self.probe} is known to try it with.")
        whys = []
        for address in addresses[:2]:
            why = await self.knock(address, 25)
            if why is None:
                return Finding(check, "good", f"{address} greeted.")
            whys.append(f"{address} {why}")
        if family == "IPv6":
            remedy = (
                "Give this machine IPv6 with a PTR record, or do without: IPv4 is tried first. Servers with IPv6 alone are not reached."
            )
            return Finding(check, "doubtful", "; ".join(whys) + ".", remedy)
        remedy = "Ask the provider of this machine to open outgoing port 25, or send by another host: delivery.routes."
        return Finding(check, "bad", "; ".join(whys) + ".", remedy)

    async def pointers(self) -> list[Finding]:
        """Each address has the name that it greets with, and the name leads back (Forward-confirmed reverse DNS)."""
        found: list[Finding] = []
        for address, ehlo in self.identities:
            forward = await self.names.addresses(ehlo)
            known = forward.values if isinstance(forward, Records) else ()
            if not known:
                remedy = f"Publish an A record (and AAAA) for {ehlo}, or set delivery.ehlo_name to a name that has one."
                found.append(Finding("ehlo name", "bad", f"The EHLO name {ehlo} has no address.", remedy))
                continue
            for one in known if address is None else (address,):
                found.append(await self._pointer(one, ehlo, known))
        return found

    async def _pointer(self, address: str, ehlo: str, known: Collection[str]) -> Finding:
        check = f"PTR of {address}"
        if ipaddress.ip_address(address).is_private:
            return Finding(check, "doubtful", f"{address} is a private address; what others see is not known here.", "Look from outside.")
        if address not in known:
            return Finding(check, "bad", f"{ehlo} does not lead to {address}.", f"Add an address record of {ehlo} with {address}.")
        back = await self.names.ptr(address)
        names = back.values if isinstance(back, Records) else ()
        if ehlo.lower() in names:
            return Finding(check, "good", f"It is {ehlo}, which leads back.")
        told = f"it is {', '.join(names)}" if names else "there is none"
        remedy = f"Have the PTR record of {address} set to {ehlo} where the address was rented; large receivers refuse mail without."
        return Finding(check, "bad", f"It should be {ehlo}, but {told}.", remedy)

    async def lists(self) -> list[Finding]:
        """Block lists (5782): an address of ours under a list's zone means that it is on it."""
        found: list[Finding] = []
        for address in sorted({each for each, _ in await self._own()}):
            for zone in self.dnsbls:
                found.append(await self._listed(address, zone))
        return found

    async def _listed(self, address: str, zone: str) -> Finding:
        check = f"{zone} for {address}"
        answer = await self.names.addresses(f"{reversed_name(address)}.{zone}")
        if isinstance(answer, NxDomain):
            return Finding(check, "good", "It is not listed.")
        codes = answer.values if isinstance(answer, Records) else ()
        if any(code.startswith("127.255.255.") for code in codes) or not codes:
            why = "the list does not answer this resolver" if codes else "it did not answer"
            return Finding(check, "doubtful", f"Not known: {why}.", "Ask by a resolver of your own instead of a public one.")
        remedy = f"Find out why on the pages of {zone}, stop it, and ask to be taken off."
        return Finding(check, "bad", f"It is listed ({', '.join(codes)}).", remedy)

    async def _own(self) -> list[tuple[str, str]]:
        own: list[tuple[str, str]] = []
        for address, ehlo in self.identities:
            forward = None if address else await self.names.addresses(ehlo)
            known = (address,) if address else forward.values if isinstance(forward, Records) else ()
            own += [(one, ehlo) for one in known if not ipaddress.ip_address(one).is_private]
        return own

    async def clock(self) -> list[Finding]:
        ahead = await self.clock_ahead()
        if abs(ahead) <= _CLOCK:
            return [Finding("clock", "good", "It agrees with the database's.")]
        way = "before" if ahead > 0 else "after"
        return [
            Finding(
                "clock", "bad", f"It goes {abs(ahead):.0f} s {way} the database's.", "Run chrony or systemd-timesyncd on both machines."
            )
        ]

    async def postgres(self) -> list[Finding]:
        given = await self.database()
        found = [self._setting(given, name, why) for name, why in _MUST_BE_ON.items()]
        if int(given["server_version_num"]) < 150000:
            found.append(Finding("postgres", "bad", f"It is version {given['server_version']}.", "Use Postgres 15 or newer."))
        room = int(given["max_connections"]) - int(given["superuser_reserved_connections"])
        if room < self.pool + 5:
            said = f"It lets {room} connections in; this process uses up to {self.pool + 2}."
            found.append(Finding("postgres max_connections", "bad", said, "Raise max_connections, or lower database.pool."))
        return found

    def _setting(self, given: Mapping[str, str], name: str, why: str) -> Finding:
        value = given[name]
        if value in ("on", "remote_apply", "remote_write"):
            return Finding(f"postgres {name}", "good", f"It is {value}.")
        return Finding(f"postgres {name}", "bad", f"It is {value}: {why}.", f"Set {name} = on in postgresql.conf.")

    async def tls(self) -> list[Finding]:
        """The certificate of the relay's ports."""
        given = self.certificate()
        if given is None:
            return [Finding("certificate", "good", "The relay is not open here, so there is none.")]
        if isinstance(given, str):
            return [Finding("certificate", "bad", given, "Set smtp.certbot, or smtp.certificate and smtp.key.")]
        left = given.expires - self.now()
        if left < timedelta(0):
            return [Finding("certificate", "bad", f"It expired on {given.expires:%Y-%m-%d}.", "Renew it; certbot does so by itself.")]
        if left < _EXPIRES:
            return [Finding("certificate", "doubtful", f"It expires in {left.days} days.", "See why it was not renewed yet.")]
        return [Finding("certificate", "good", f"It is for {', '.join(given.names)} and holds for {left.days} days.")]


_MUST_BE_ON = {
    "fsync": "what was acknowledged can be lost when the machine stops",
    "full_page_writes": "the database can be damaged when the machine stops",
    "synchronous_commit": "what was acknowledged can be lost when the server stops",
}
