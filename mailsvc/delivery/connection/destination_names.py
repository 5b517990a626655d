"""What an operator may call a destination: its whole name, one of its hosts, a provider, or a recipient's domain. In front of each: POOL@.

How destinations are named: route and delivery/shaping.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from mailsvc.delivery.connection.route import Answer, NoMail, Route, Routes, Unknown
from mailsvc.delivery.shaping import DEFAULT_POOL, Shaping, pool_of, pooled
from mailsvc.mail.address import AddressError, Path, parse_path

_LISTED = 20  # destinations in the answer to an ambiguous name


@attrs.frozen
class Named:
    """The names of destinations. If none was found, `why` says so in a sentence; a list can follow in lines of its own."""

    names: Sequence[str] = ()
    why: str = ""


@attrs.frozen
class DestinationNames:
    """`pools`: the names of all pools; that of the default pool is empty."""

    routes: Routes
    shaping: Shaping
    pools: Callable[[], Collection[str]]

    async def find(self, text: str, known: Collection[str]) -> Named:
        """`known`: destinations with queued mail, with a hold or with connections. A recipient's domain means all pools."""
        pool, at, name = text.strip().rpartition("@")
        name = name.lower().rstrip(".")
        pool = "" if pool == DEFAULT_POOL else pool
        if pool not in {"", *self.pools(), *map(pool_of, known)}:
            return Named(why=f"There is no pool {pool!r}.")
        exact = pooled(name, pool)
        if name in self.shaping.providers or name in self.routes.fixed:
            return Named([exact])
        if exact in known and any(sign in name for sign in " /:"):
            return Named([exact])
        found = {exact} & set(known)
        if not found:
            by_host = self._with_host(name, pool if at else None, known)
            if by_host.names or by_host.why:
                return by_host
        answer = await self._answer(name)
        if isinstance(answer, Route):
            # Mail is queued under the bare domain until its hosts are known, and held under it while DNS does not answer.
            pools = [pool] if at else sorted({"", *self.pools()})
            return Named(sorted(found | {pooled(answer.destination, each) for each in pools}))
        return Named(sorted(found)) if found else Named(why=_unknown(text, answer))

    async def _answer(self, name: str) -> Answer:
        """The route of a domain, which may be written in any script."""
        try:
            path, rest = parse_path(f"<x@{name}>".encode(), True)
        except AddressError:
            path, rest = Path(""), b""
        if not path.domain or rest:
            return NoMail(f"550 5.1.2 {name} is not a mail domain")
        return await self.routes.resolve(path.domain)

    def _with_host(self, host: str, pool: str | None, known: Iterable[str]) -> Named:
        """Known destinations of these hosts. Ambiguous if there are several sets of hosts. `pool` None: all pools."""
        found = [each for each in known if host in _hosts(each) and pool in (None, pool_of(each))]
        if len({_without_pool(each) for each in found}) > 1:
            listed = sorted(found)[:_LISTED]
            more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
            return Named(why="\n".join([f"{host} is a host of several destinations. Choose one by its whole name:", *listed, *more]))
        return Named(sorted(found))


def _without_pool(destination: str) -> str:
    return destination.rpartition("@")[2]


def _hosts(destination: str) -> list[str]:
    name = _without_pool(destination)
    return (name.partition("/")[2] or name).split(" ")


def _unknown(text: str, answer: NoMail | Unknown) -> str:
    why = answer.reply.partition(" ")[2].partition(" ")[2] + "." if isinstance(answer, NoMail) else answer.reason
    return (
        f"There is no destination {text!r}. {why} Use a name from `mailsvc queue list`, a mail server, "
        "a recipient's domain, or the name of a provider."
    )
