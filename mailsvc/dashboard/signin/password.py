"""Passwords: which are good enough, and their Argon2id form. Computed on threads, few at a time, since each takes 19 MiB."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from twisted.internet.defer import DeferredSemaphore
from zxcvbn import zxcvbn

AT_ONCE = 2
WAITING = 50  # above it nobody else queues up
SHORTEST, LONGEST = 10, 1000
BESIDES = 6  # characters that a password has besides names that everybody knows
_JUDGED = 40  # characters that are looked at for being easily guessed: the time grows with their square
# zxcvbn tries every combination of mailer that these signs may stand for: with all of them in one password that takes 20 seconds.
_STAND_INS, _TRIED = "4@8({[<3691!|705$+%2", 5
_KNOWN, _SHORTEST_PART = 200, 3  # characters of a name or an address that are looked at, and of a part that counts
_PART = re.compile(r"[^\W_]+")
EASY = "This password is easy to guess. Use a few unrelated words."

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)  # 9106 §4, with the memory that OWASP names
_NOBODY = _HASHER.hash("of somebody who is not there")


class Busy(Exception):
    """Too many passwords wait to be computed; try again in a moment."""


@attrs.define(eq=False)
class Passwords:
    """`in_thread` runs a function off the reactor."""

    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    names: Sequence[str] = ("mailsvc",)  # of this service
    _turn: DeferredSemaphore = attrs.field(factory=lambda: DeferredSemaphore(AT_ONCE), init=False)

    async def hash(self, password: str) -> str:
        return str(await self._run(lambda: _HASHER.hash(password)))

    async def verify(self, password: str, stored: str | None) -> bool:
        """Whether it is this one. Takes the same time when there is none."""
        checked = await self._run(lambda: _verified(password[:LONGEST], stored or _NOBODY))
        return bool(checked) and stored is not None

    async def problem(self, password: str, *known: str) -> str | None:
        """Why it will not do, as a message. `known`: what a guesser knows of the person and of where they sign in."""
        if len(password) < SHORTEST:
            return f"Use at least {SHORTEST} characters."
        if len(password) > LONGEST:
            return f"Use at most {LONGEST:,} characters."
        easy = await self._run(lambda: _easy(password, guesses(*known, *self.names)))
        return EASY if easy else None

    @property
    def busy(self) -> bool:
        return len(self._turn.waiting) >= WAITING

    async def _run(self, work: Callable[[], Any]) -> Any:
        if self.busy:
            raise Busy
        await self._turn.acquire()
        try:
            return await self.in_thread(work)
        finally:
            self._turn.release()


def _easy(password: str, words: Sequence[str]) -> bool:
    """Whether it is soon guessed, or is hardly more than words that a guesser begins with."""
    if zxcvbn(_looked_at(password), user_inputs=words)["score"] < 2:
        return True
    rest = password.lower()
    for word in sorted(words, key=len, reverse=True):
        rest = rest.replace(word, "")
    return len(rest) < BESIDES and len(rest) < len(password)


def _looked_at(password: str) -> str:
    """The beginning of it, in which only the first few kinds of stand-ins are tried; others become signs that stand for no email."""
    beginning = password[:_JUDGED]
    kinds = list(dict.fromkeys(each for each in beginning if each in _STAND_INS))
    return beginning.translate({ord(sign): chr(0xE000 + number) for number, sign in enumerate(kinds[_TRIED:])})


def guesses(*known: str) -> list[str]:
    """Words that a guesser begins with: each name and address, without its signs, and each of its parts."""
    found: dict[str, None] = {}
    for text in (one.lower()[:_KNOWN] for one in known):
        parts = _PART.findall(text)
        found |= dict.fromkeys([text, "".join(parts), *parts])
    return [word for word in found if len(word) >= _SHORTEST_PART]


def outdated(stored: str) -> bool:
    """Whether it was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(stored)


def _verified(password: str, stored: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (Argon2Error, InvalidHashError):
        return False
