"""Provider rules: which mail servers belong to a provider, its limits, the replies after which all its mail slows down or pauses, and how
much a new source address sends to it. Also the names of destinations and of pools of source addresses.

Pure. The rules are in shaping.toml, which explains the fields. Keeping to the limits: admission/budget, connection/source_state.
Following a reply: reactions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from mailsvc.mail.reply import Reply

Then = Literal["pause", "slow"]
DEFAULT_POOL = "default"  # as people write it
OTHERS = "other"  # all destinations without a provider, when a source warms up
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_WHOLE = ("connections", "messages_per_connection")
_LIMITS = (*_WHOLE, "connections_per_minute", "messages_per_second")
_REACTION = {"code", "enhanced", "text", "then", "minutes", "messages_per_minute", "because", "sample"}


class BadRules(Exception):
    """A sentence: what is wrong in the file."""


@attrs.frozen
class Limits:
    """Of a region. None: the provider has no such limit."""

    connections: int | None = None
    messages_per_connection: int | None = None
    connections_per_minute: float | None = None
    messages_per_second: float | None = None


@attrs.frozen
class Reaction:
    """What follows from a kind of reply. `name` identifies the rule for people: provider and number."""

    name: str
    then: Then
    seconds: float
    because: str
    code: int | None = None
    enhanced: str | None = None
    text: str | None = None
    messages_per_minute: float = 6.0
    sample: str = ""

    def matches(self, reply: Reply) -> bool:
        if self.code is not None and reply.code != self.code:
            return False
        if self.enhanced is not None and reply.enhanced != self.enhanced:
            return False
        return self.text is None or self.text.lower() in str(reply).lower()


@attrs.frozen
class Provider:
    """`match`: endings of its mail servers' names. `chunking`: whether BDAT works with those that offer it.

    `warm_up`: emails a day from a new source address; None if the provider has no schedule of its own.
    """

    name: str
    match: tuple[str, ...]
    limits: Limits = Limits()
    reactions: tuple[Reaction, ...] = ()
    chunking: bool = True
    warm_up: tuple[int, ...] | None = None

    def serves(self, hosts: Iterable[str]) -> bool:
        return all(f".{host}".endswith(self.match) for host in hosts)


@attrs.frozen
class Shaping:
    """All rules. `reactions` apply to every destination, after those of its provider.

    `warm_up`: emails a day that a new source address sends to one provider, for those without a schedule of their own.
    """

    providers: Mapping[str, Provider] = attrs.field(factory=dict)
    reactions: tuple[Reaction, ...] = ()
    warm_up: tuple[int, ...] = ()

    def provider(self, hosts: Iterable[str]) -> str | None:
        """The name of the provider that all of these hosts belong to."""
        names = list(hosts)
        return next((each.name for each in self.providers.values() if names and each.serves(names)), None)

    def limits(self, destination: str) -> Limits:
        provider = self._of(destination)
        return Limits() if provider is None else provider.limits

    def chunking(self, destination: str) -> bool:
        provider = self._of(destination)
        return provider is None or provider.chunking

    def warm_up_name(self, destination: str) -> str:
        """Under which name mail to a destination counts while a source warms up: its provider, or one for all that have none."""
        provider = self._of(destination)
        return OTHERS if provider is None else provider.name

    @property
    def warm_up_days(self) -> int:
        """After so many days a source is warm for every provider."""
        return max(len(self.warm_up), *(len(each.warm_up or ()) for each in self.providers.values()), 0)

    def warm_up_limit(self, name: str, day: int) -> int | None:
        """Emails that a source may send to this provider on so many a day of its warm-up, the first one being 1. None: any number."""
        provider = self.providers.get(name)
        schedule = self.warm_up if provider is None or provider.warm_up is None else provider.warm_up
        if day < 1:
            return 0
        return schedule[day - 1] if day <= len(schedule) else None

    def reaction(self, destination: str, replies: Iterable[Reply]) -> tuple[Reaction, Reply] | None:
        """The first rule that matches one of the replies. A pause comes before a slowdown."""
        provider = self._of(destination)
        rules = (() if provider is None else provider.reactions) + self.reactions
        found = [(rule, reply) for reply in replies for rule in rules if rule.matches(reply)]
        return min(found, key=lambda each: each[0].then != "pause", default=None)

    def _of(self, destination: str) -> Provider | None:
        return self.providers.get(provider_of(destination).rpartition("@")[2])


NO_RULES = Shaping()


def destination_name(provider: str | None, hosts: str) -> str:
    """The name of a set of hosts in all processes. It begins with the provider, so that one hold can cover all of the provider's hosts."""
    return hosts if provider is None else f"{provider}/{hosts}"


def provider_of(destination: str) -> str:
    """The provider's name, with the pool: what shares limits and holds. A destination without a provider is its own."""
    return destination.partition("/")[0]


def pooled(destination: str, pool: str) -> str:
    """The name of a destination for the mail of a pool. Pools share neither connections nor limits nor holds."""
    return f"{pool}@{destination}" if pool else destination


def pool_of(destination: str) -> str:
    """The pool whose mail a destination is for. Empty: the default pool."""
    return destination.rpartition("@")[0]


def pool_name(text: str) -> str:
    """The name of a pool as it is used inside, where the default pool's is empty. ValueError says what is wrong."""
    if not text or len(text) > 32 or not set(text) <= _NAME:
        raise ValueError(f"{text!r} is not the name of a pool: lower-case letters, digits and hyphens, at most 32")
    return "" if text == DEFAULT_POOL else text


def read(given: Mapping[str, Any]) -> Shaping:
    """The rules in a parsed file. Raises BadRules."""
    _only(given, {"provider", "reply", "warm_up"}, "The file")
    tables = given.get("provider", {})
    if not isinstance(tables, dict):
        raise BadRules("`provider` must be a table of tables.")
    providers = {name: _provider(name, table) for name, table in tables.items()}
    return Shaping(providers, _reactions("any", given.get("reply", [])), _warm_up("The file", given) or ())


def _provider(name: str, table: Any) -> Provider:
    where = f"The provider {name}"
    if not name or name == OTHERS or not set(name) <= _NAME or not isinstance(table, dict):
        raise BadRules(f"{where} must be a table, and its name may only have lower-case letters, digits and hyphens.")
    _only(table, {"match", "source", "chunking", "reply", "warm_up", *_LIMITS}, where)
    match = table.get("match")
    if not isinstance(match, list) or not match or not all(isinstance(each, str) and each.startswith(".") for each in match):
        raise BadRules(f'{where} needs `match`, a list of endings such as ".example.com".')
    for key in _LIMITS:
        if key in table and not _positive(table[key], whole=key in _WHOLE):
            raise BadRules(f"{where} has {key} = {table[key]!r}; expected a {'whole ' if key in _WHOLE else ''}number above 0.")
    if type(table.get("chunking", True)) is not bool:
        raise BadRules(f"{where} has chunking = {table['chunking']!r}; expected true or false.")
    limits = Limits(**{key: table[key] for key in _LIMITS if key in table})
    reactions, chunking = _reactions(name, table.get("reply", [])), table.get("chunking", True)
    return Provider(name, tuple(each.lower() for each in match), limits, reactions, chunking, _warm_up(where, table))


def _warm_up(where: str, table: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = table.get("warm_up")
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(type(each) is int and each > 0 for each in given):
        raise BadRules(f"{where} has warm_up = {given!r}; expected a list of emails a day, such as [50, 100, 200].")
    return tuple(given)


def _positive(value: Any, *, whole: bool = False) -> bool:
    return type(value) in ((int,) if whole else (int, float)) and 0 < value < math.inf


def _reactions(owner: str, tables: Any) -> tuple[Reaction, ...]:
    if not isinstance(tables, list):
        raise BadRules("`reply` must be a list of tables, written as [[reply]] or [[provider.NAME.reply]].")
    return tuple(_reaction(f"{owner}-{number}", table) for number, table in enumerate(tables, 1))


def _reaction(name: str, table: Any) -> Reaction:
    where = f"The reply {name}"
    if not isinstance(table, dict):
        raise BadRules(f"{where} must be a table.")
    _only(table, _REACTION, where)
    if not {"code", "enhanced", "text"} & table.keys():
        raise BadRules(f"{where} needs at least one of `code`, `enhanced` and `text`.")
    if "code" in table and not (type(table["code"]) is int and 400 <= table["code"] <= 599):
        raise BadRules(f"{where} has code = {table['code']!r}; expected a number from 400 to 599.")
    for key in ("enhanced", "text", "because", "sample"):
        if not isinstance(table.get(key, ""), str):
            raise BadRules(f"{where} has {key} = {table[key]!r}; expected text in quotes.")
    if table.get("then") not in ("pause", "slow"):
        raise BadRules(f'{where} has then = {table.get("then")!r}; expected "pause" or "slow".')
    minutes, rate = table.get("minutes", 0), table.get("messages_per_minute", 6)
    if not (_positive(minutes) and _positive(rate)):
        raise BadRules(f"{where} needs `minutes` above 0, and `messages_per_minute` above 0.")
    if not table.get("because"):
        raise BadRules(f"{where} needs `because`, which is shown as the reason of waiting recipients.")
    rest = {key: table[key] for key in ("code", "enhanced", "text", "sample") if key in table}
    return Reaction(name, table["then"], 60.0 * minutes, table["because"], messages_per_minute=float(rate), **rest)


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise BadRules(f"{where} has {unknown[0]!r}, which is unknown. Known keys: {', '.join(sorted(known))}.")
