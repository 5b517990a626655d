"""Passwords: strength, and hashing with Argon2id, in threads and few at a time, since each hash takes 19 MiB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from zxcvbn import zxcvbn

from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore

AT_ONCE = 2
WAITING = 50  # more are refused
SHORTEST, LONGEST = 10, 1000
BESIDES = 6  # characters required beyond known names
_JUDGED = 40  # characters judged: the time grows with their square
# zxcvbn tries every combination of letters for these substitutes; with all of them in one password that takes 20 seconds.
_SUBSTITUTES, _TRIED = "4@8({[<3691!|705$+%2", 5
_KNOWN, _SHORTEST_PART = 200, 3  # characters of a name or address used; shortest part used
_PART = re.compile(r"[^\W_]+")
EASY = "This password is easy to guess. Use a few unrelated words."

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)  # 9106 §4, with the memory that OWASP names
_NOBODY = _HASHER.hash("of somebody who is not there")


class Busy(Exception):
    """Too many passwords are waiting to be hashed."""


@attrs.define(eq=False)
class Passwords:
    """`in_thread` runs a function off the reactor."""

    in_thread: InThread
    names: Sequence[str] = ("mailsvc",)  # the service's own names
    _turn: Semaphore = attrs.field(factory=lambda: Semaphore(AT_ONCE), init=False)

    async def hash(self, password: str) -> str:
        return str(await self._run(lambda: _HASHER.hash(password)))

    async def verify(self, password: str, stored: str | None) -> bool:
        """Whether the password matches. Takes the same time if there is no stored one."""
        checked = await self._run(lambda: _verified(password[:LONGEST], stored or _NOBODY))
        return bool(checked) and stored is not None

    async def problem(self, password: str, *known: str) -> str | None:
        """Why a new password is not acceptable, or None. `known`: names and addresses that a guesser would try."""
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
    """Whether it is easy to guess, or little more than words that a guesser tries first."""
    if zxcvbn(_looked_at(password), user_inputs=words)["score"] < 2:
        return True
    rest = password.lower()
    for word in sorted(words, key=len, reverse=True):
        rest = rest.replace(word, "")
    return len(rest) < BESIDES and len(rest) < len(password)


def _looked_at(password: str) -> str:
    """Its beginning, with only the first few kinds of substitutes kept. Others become characters that zxcvbn does not substitute."""
    beginning = password[:_JUDGED]
    kinds = list(dict.fromkeys(each for each in beginning if each in _SUBSTITUTES))
    return beginning.translate({ord(sign): chr(0xE000 + number) for number, sign in enumerate(kinds[_TRIED:])})


def guesses(*known: str) -> list[str]:
    """Words that a guesser tries first: each name and address, also without punctuation, and its parts."""
    found: dict[str, None] = {}
    for text in (one.lower()[:_KNOWN] for one in known):
        parts = _PART.findall(text)
        found |= dict.fromkeys([text, "".join(parts), *parts])
    return [word for word in found if len(word) >= _SHORTEST_PART]


def outdated(stored: str) -> bool:
    """Whether the hash was made with other parameters than the current ones."""
    return _HASHER.check_needs_rehash(stored)


def _verified(password: str, stored: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (Argon2Error, InvalidHashError):
        return False
