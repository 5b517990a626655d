"""Finds an email address in text and in messages, in every encoding that the service stores.

`expression` is a regular expression that Python and Postgres read alike: the address literally, or with its special characters as in URLs,
HTML, JSON, SMTP parameters (xtext) and quoted-printable. It does not match within a longer address. `in_message` decodes a message before
it searches. Compressed files, such as PDF or ZIP, are not decompressed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
import idna

from mailsvc.mail import charset, encoded_word, mime
from mailsvc.mail.address import quoted_if_dotted
from mailsvc.mail.header import split_message

T = TypeVar("T", str, bytes)

LONGEST = 4096  # more characters than any form of an address has
_SLICE = 1 << 17  # characters that are searched at once: a search in a thread keeps the interpreter busy
_NESTED = 5  # levels of attached messages
_ENCODED = (b"base64", b"quoted-printable", b"=?", b"utf-16", b"utf-32", b"utf16", b"utf32")  # without these, a message is as it is read
_MESSAGES = ("message/rfc822", "message/global", "text/rfc822-headers", "message/delivery-status")
# Before the address, text may end with an escape whose last character looks like a part of the address: \n, %3C, \u003c.
_BEFORE = r"(?:(?<![\w.+%-])|(?<=\\[nrtbf])|(?<=%[0-9a-f][0-9a-f])|(?<=\\u[0-9a-f][0-9a-f][0-9a-f][0-9a-f]))"
# After it, a further label would make it another address; the ending of a file name does not.
_FILES = "csv|docx?|eml|gz|html?|ics|jpe?g|json|msg|pdf|png|txt|vcf|xlsx?|xml|zip"
_AFTER = rf"(?![\w-])(?!\.(?!(?:{_FILES})(?![\w.-]))\w)"

PLACEHOLDER = "erased@erased.invalid"


@attrs.frozen
class Address:
    """An address to look for. `comparable`: what stored addresses in lower case are equal to."""

    text: str = attrs.field(repr=False)

    @property
    def comparable(self) -> tuple[str, ...]:
        local, _, _ = self.text.rpartition("@")
        return tuple(f"{local.lower()}@{domain}" for domain in self._domains)

    @property
    def run(self) -> str:
        """A part that every form has, in lower case: searching for it is cheap. Of the local part if possible, as domains are shared."""
        local = max(_runs(self._local), key=len)
        shared = [run for run in _runs(self._domains[0]) if all(run in domain for domain in self._domains)]
        return local if len(local) >= 3 else max([local, *shared], key=len)

    @property
    def anywhere(self) -> str:
        """The forms of the address, also within longer ones. To be used without regard to case, like `expression`."""
        return f"{self._local_forms}{_special('@')}(?:{'|'.join(_forms(domain) for domain in self._domains)})"

    @property
    def expression(self) -> str:
        return f"{_BEFORE}{self.anywhere}{_AFTER}"

    @property
    def _local_forms(self) -> str:
        """With quotes as the address has them, and without if others write it so."""
        inner = self._local.strip('"')
        without = f"|{_forms(inner)}" if self._local == quoted_if_dotted(inner) != inner else ""
        return f"(?:{_forms(self._local)}{without})"

    @property
    def _local(self) -> str:
        return self.text.rpartition("@")[0].lower()

    @property
    def _domains(self) -> tuple[str, ...]:
        """The domain with A-labels and with U-labels."""
        domain = self.text.rpartition("@")[2].lower()
        forms = [domain]
        for convert in (lambda name: idna.encode(name, uts46=True).decode(), idna.decode):
            try:
                forms.append(convert(domain))
            except (idna.IDNAError, UnicodeError):
                continue
        return tuple(dict.fromkeys(forms))


@attrs.define(eq=False)
class Search:
    """Searches for one address. Make it once: it compiles the expression."""

    address: Address
    _pattern: re.Pattern[str] = attrs.field(init=False)
    _run: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pattern = re.compile(self.address.expression, re.IGNORECASE)
        self._run = self.address.run

    def in_text(self, text: str) -> bool:
        return any(self._run in part.lower() and self._pattern.search(part) is not None for part in _overlapping(text))

    def in_bytes(self, data: bytes, named_charset: str = "") -> bool:
        """Text in the charset, and as it is."""
        readers: list[Callable[[bytes], str]] = [_latin_1]
        if named_charset:
            readers.append(lambda part: charset.decode(part, named_charset))
        elif not data.isascii():
            readers += [lambda part: part.decode("utf-8", "replace"), lambda part: part.decode("utf-16-le", "replace")]
        return any(self.in_text(read(part)) for part in _overlapping(data) for read in readers)

    def in_message(self, message: bytes, depth: int = 0) -> bool:
        """In its header, its parts, and the messages attached to it."""
        if self.in_bytes(message):
            return True
        lowered = message.lower()
        if not any(sign in lowered for sign in _ENCODED):
            return False
        block, _ = split_message(message[: 1 << 20])
        if self.in_text(encoded_word.decode(charset.guess(block).replace("\r\n", ""))):
            return True
        try:
            parsed = mime.parse(message)
        except mime.MimeError:
            return False
        for text in (parsed.html, parsed.text):
            if text is not None and self.in_text(text):
                return True
        for file in parsed.files:
            if self.in_text(file.filename or "") or self.in_bytes(file.content):
                return True
            if file.content_type in _MESSAGES and depth < _NESTED and self.in_message(file.content, depth + 1):
                return True
        return False

    def blank(self, data: bytes) -> bytes:
        """Text with `x` in place of each character of the address. It keeps its length."""
        return self._pattern.sub(lambda found: "x" * len(found[0]), _latin_1(data)).encode("latin-1")


def _latin_1(data: bytes) -> str:
    return data.decode("latin-1")


def _runs(text: str) -> list[str]:
    """The sequences of ASCII letters and digits."""
    return "".join(character if character.isascii() and character.isalnum() else " " for character in text).split() or [""]


def _forms(text: str) -> str:
    return "".join(character if character.isascii() and character.isalnum() else _special(character) for character in text)


def _special(character: str) -> str:
    """A character that is not a letter or a digit of ASCII, literally or encoded."""
    encoded = character.encode("utf-8", "replace")
    forms = ["".join(f"{sign}{octet:02x}" for octet in encoded) for sign in ("%", "=", r"\+")]
    forms += [rf"&#0{{0,5}}{ord(character)};", rf"&#x0{{0,5}}{ord(character):x};"]
    forms += ["".join(rf"\\u{unit:04x}" for unit in _utf_16(character)), rf"\\x\{{{ord(character):x}\}}"]
    if character == '"':
        forms += ['\\\\"', "&quot;"]
    if not character.isascii():
        latin = encoded.decode("latin-1")
        forms += ["".join(_literal(each) for each in latin)]
    return f"(?:{'|'.join([_literal(character), *forms])})"


def _literal(character: str) -> str:
    return character if character.isalnum() else f"\\{character}" if character.isascii() else f"[{character}]"


def _utf_16(character: str) -> list[int]:
    data = character.encode("utf-16-be", "replace")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _overlapping(whole: T) -> Iterator[T]:
    for at in range(0, max(len(whole), 1), _SLICE):
        yield whole[max(at - LONGEST, 0) : at + _SLICE]
