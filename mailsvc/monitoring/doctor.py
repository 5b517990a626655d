"""Checks of what delivery depends on: DNS, port 25, reverse DNS, blocklists, clock, Postgres, certificate. Each result has a remedy.

Access to the network and the database is passed in as functions. The command: cli/doctor.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import attrs

from mailsvc.net import block_lists
from mailsvc.net.dns import NxDomain, Records, Resolver, Temporary, reversed_name

State = Literal["ok", "warning", "error"]

_CLOCK_TOLERANCE = 5.0  # seconds
_EXPIRES_SOON = timedelta(days=14)


@attrs.frozen
class Finding:
    """The result of a check. `remedy` is empty if there is nothing to do."""

    check: str
    state: State
    found: str
    remedy: str = ""


@attrs.frozen
class Certificate:
    """The certificate of the SMTP ports."""

    expires: datetime
    names: tuple[str, ...]


@attrs.frozen
class Doctor:
    """`sources`: source addresses and EHLO names; an address of None is looked up. `greet`: why a port sends no greeting, or None."""

    lookups: Resolver
    sources: Sequence[tuple[str | None, str]]
    greet: Callable[[str, int], Awaitable[str | None]]
    probe: str | None  # a domain whose mail servers are reachable from anywhere; None: check nothing on the internet
    dnsbls: Collection[str]
    clock_ahead: Callable[[], Awaitable[float]]
    database: Callable[[], Awaitable[Mapping[str, str]]]
    pool: int
    certificate: Callable[[], Certificate | str | None]
    now: Callable[[], datetime]

    async def examine(self) -> list[Finding]:
        """Runs all checks. A check that fails is a finding too."""
        return [*await self.outside(), *await self.inside()]

    async def outside(self) -> list[Finding]:
        """Runs the checks that need no database."""
        internet = (self.not_probed,) if self.probe is None else (self.dns, self.port25, self.lists)
        return await self._run(*internet, self.pointers)

    async def inside(self) -> list[Finding]:
        """Runs the others."""
        return await self._run(self.clock, self.postgres, self.tls)

    async def _run(self, *checks: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
        found: list[Finding] = []
        for check in checks:
            try:
                found += await check()
            except Exception as error:
                found.append(
                    Finding(
                        getattr(check, "__name__", "check"),
                        "error",
                        f"The check failed: {error or type(error).__name__}.",
                        "Fix the reported error.",
                    )
                )
        return found

    async def not_probed(self) -> list[Finding]:
        """What takes the place of the checks that need the internet."""
        text = "Not checked: lookups of other domains, outgoing port 25 and block lists."
        return [Finding("internet", "warning", text, "To check them, name a domain whose mail servers you can reach: --probe DOMAIN.")]

    async def dns(self) -> list[Finding]:
        answer = await self.lookups.mx(self.probe or "")
        if isinstance(answer, Records) and answer.values:
            return [Finding("dns", "ok", f"DNS lookups work: the mail servers of {self.probe} were found.")]
        why = answer.reason if isinstance(answer, Temporary) else "the answer has none"
        remedy = "Make sure that the resolvers in /etc/resolv.conf or delivery.nameservers answer on port 53 over UDP and TCP."
        return [Finding("dns", "error", f"The mail servers of {self.probe} could not be looked up: {why}.", remedy)]

    async def port25(self) -> list[Finding]:
        """Checks outgoing connections, by address family."""
        answer = await self.lookups.mx(self.probe or "")
        hosts = sorted(answer.values, key=lambda mx: mx.preference) if isinstance(answer, Records) else []
        found = [await self.lookups.addresses(mx.host) for mx in hosts[:2]]
        addresses = [address for each in found if isinstance(each, Records) for address in each.values]
        return [
            await self._port25(family, [each for each in addresses if (":" in each) == (family == "IPv6")]) for family in ("IPv4", "IPv6")
        ]

    async def _port25(self, family: str, addresses: list[str]) -> Finding:
        check = f"port 25 over {family}"
        if not addresses:
            return Finding(check, "warning", f"{self.probe} has no {family} address to try.")
        whys = []
        for address in addresses[:2]:
            why = await self.greet(address, 25)
            if why is None:
                return Finding(check, "ok", f"{address} sent a greeting.")
            whys.append(f"{address} {why}")
        if family == "IPv6":
            remedy = "To reach servers that only have IPv6, give this machine IPv6 with a PTR record. Other servers are reached over IPv4."
            return Finding(check, "warning", "; ".join(whys) + ".", remedy)
        remedy = "Ask your hosting provider to open outgoing port 25, or send through another host (delivery.routes)."
        return Finding(check, "error", "; ".join(whys) + ".", remedy)

    async def pointers(self) -> list[Finding]:
        """Checks forward-confirmed reverse DNS: each address's PTR record is its EHLO name, which resolves to the address."""
        found: list[Finding] = []
        for address, ehlo in self.sources:
            forward = await self.lookups.addresses(ehlo)
            known = forward.values if isinstance(forward, Records) else ()
            if isinstance(forward, Temporary):
                found.append(not_looked_up("ehlo name", f"The address of the EHLO name {ehlo}", forward))
                continue
            if not known:
                remedy = f"Add an A record (and AAAA) for {ehlo}, or set delivery.ehlo_name to a name that has one."
                found.append(Finding("ehlo name", "error", f"The EHLO name {ehlo} has no address.", remedy))
                continue
            for one in known if address is None else (address,):
                found.append(await self._pointer(one, ehlo, known))
        return found

    async def _pointer(self, address: str, ehlo: str, known: Collection[str]) -> Finding:
        check = f"PTR of {address}"
        if ipaddress.ip_address(address).is_private:
            return Finding(
                check,
                "warning",
                f"{address} is a private address; the public address is not known.",
                "Check the public address from another machine.",
            )
        if address not in known:
            return Finding(check, "error", f"{ehlo} does not resolve to {address}.", f"Add an address record for {ehlo} with {address}.")
        back = await self.lookups.ptr(address)
        if isinstance(back, Temporary):
            return not_looked_up(check, "It", back)
        names = back.values if isinstance(back, Records) else ()
        if ehlo.lower() in names:
            return Finding(check, "ok", f"It is {ehlo}, which resolves to {address}.")
        actual = f"it is {', '.join(names)}" if names else "there is none"
        remedy = f"Ask the provider of {address} to set its PTR record to {ehlo}. Large receivers refuse mail without it."
        return Finding(check, "error", f"It should be {ehlo}, but {actual}.", remedy)

    async def lists(self) -> list[Finding]:
        """Looks up each source address in each DNS blocklist (5782)."""
        found: list[Finding] = []
        for address in sorted({each for each, _ in await self._public_sources()}):
            for zone in self.dnsbls:
                found.append(await self._listed(address, zone))
        return found

    async def _listed(self, address: str, zone: str) -> Finding:
        check = f"{zone} for {address}"
        answer = await self.lookups.addresses(f"{reversed_name(address)}.{zone}")
        if isinstance(answer, NxDomain):
            return Finding(check, "ok", "Not listed.")
        codes = answer.values if isinstance(answer, Records) else ()
        refused = any(code.startswith("127.255.255.") for code in codes)
        if refused or not codes or not all(code.startswith("127.") for code in codes):
            why = "the list refuses queries from this resolver" if refused else "it did not answer"
            return Finding(check, "warning", f"Unknown: {why}.", "Use your own resolver instead of a public one.")
        if await block_lists.lists_everything(self.lookups, zone):
            return Finding(check, "warning", "The list was given up: it lists every address.", "Leave it out: see --dnsbl.")
        remedy = f"Look up the reason on the website of {zone}, fix the cause, and request removal."
        return Finding(check, "error", f"Listed ({', '.join(codes)}).", remedy)

    async def _public_sources(self) -> list[tuple[str, str]]:
        own: list[tuple[str, str]] = []
        for address, ehlo in self.sources:
            forward = None if address else await self.lookups.addresses(ehlo)
            known = (address,) if address else forward.values if isinstance(forward, Records) else ()
            own += [(one, ehlo) for one in known if not ipaddress.ip_address(one).is_private]
        return own

    async def clock(self) -> list[Finding]:
        ahead = await self.clock_ahead()
        if abs(ahead) <= _CLOCK_TOLERANCE:
            return [Finding("clock", "ok", "It matches the database's clock.")]
        direction = "ahead of" if ahead > 0 else "behind"
        return [
            Finding(
                "clock",
                "error",
                f"It is {abs(ahead):.0f} s {direction} the database's.",
                "Run chrony or systemd-timesyncd on both machines.",
            )
        ]

    async def postgres(self) -> list[Finding]:
        given = await self.database()
        found = [self._setting(given, name, why) for name, why in _MUST_BE_ON.items()]
        if int(given["server_version_num"]) < 150000:
            found.append(Finding("postgres", "error", f"The version is {given['server_version']}.", "Upgrade to Postgres 15 or newer."))
        room = int(given["max_connections"]) - int(given["superuser_reserved_connections"])
        if room < self.pool + 5:
            text = f"It allows {room} connections; this process uses up to {self.pool + 2}."
            found.append(Finding("postgres max_connections", "error", text, "Raise max_connections, or lower database.pool."))
        return found

    def _setting(self, given: Mapping[str, str], name: str, why: str) -> Finding:
        value = given[name]
        if value in ("on", "remote_apply", "remote_write"):
            return Finding(f"postgres {name}", "ok", f"It is {value}.")
        return Finding(f"postgres {name}", "error", f"It is {value}: {why}.", f"Set {name} = on in postgresql.conf.")

    async def tls(self) -> list[Finding]:
        """Checks the certificate of the SMTP ports."""
        given = self.certificate()
        if given is None:
            return [Finding("certificate", "ok", "Not needed: this process has no SMTP ports that use one.")]
        if isinstance(given, str):
            return [Finding("certificate", "error", given, "Set smtp.certbot, or smtp.certificate and smtp.key.")]
        left = given.expires - self.now()
        if left < timedelta(0):
            return [
                Finding(
                    "certificate",
                    "error",
                    f"It expired on {given.expires:%Y-%m-%d}.",
                    "Renew it, or use certbot, which renews automatically.",
                )
            ]
        if left < _EXPIRES_SOON:
            return [Finding("certificate", "warning", f"It expires in {left.days} days.", "Find out why it has not been renewed yet.")]
        return [Finding("certificate", "ok", f"It is valid for {', '.join(given.names)} and expires in {left.days} days.")]


def not_looked_up(check: str, what: str, why: Temporary) -> Finding:
    """What DNS could not be asked for is neither missing nor wrong."""
    return Finding(check, "warning", f"{what} could not be looked up: {why.reason}.", "Run `mailsvc doctor` again when DNS lookups work.")


_MUST_BE_ON = {
    "fsync": "acknowledged mail can be lost if the machine crashes",
    "full_page_writes": "the database can be corrupted if the machine crashes",
    "synchronous_commit": "acknowledged mail can be lost if Postgres crashes",
}
