"""Header fields (RFC 5322 §2.2, §3.6): writes them folded and in ASCII, checks custom ones, parses header blocks.

RFC 2047: encoded_word. RFC 2231: parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mailsvc.mail import charset, encoded_word
from mailsvc.mail.address import Mailbox

LINE = 76  # 2047 §2 for lines with an encoded word; 5322 §2.1.1 recommends 78
LONGEST_LINE = 998  # 5322 §2.1.1
NAME_LIMIT = 76
BLOCK_LIMIT = 256 * 1024  # bytes of all fields of a message

_NAME = re.compile(rf"[!-9;-~]{{1,{NAME_LIMIT}}}")  # 5322 §3.6.8 ftext
FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters except the tab; 5322 §2.2, §4.1
_PRINTABLE = re.compile(r"[ -~]*")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_TOKEN = re.compile(r" *+[^ ]++| ++")
# The parts of an address field (5322 §3.4): a quoted string, an address in angle brackets, a comment, a separator, other text.
_PART = re.compile(r'"(?>(?:[^"\\]|\\.)*)"?|<[^<>]*+>?|\((?>(?:[^()\\]|\\.)*)\)?|[,:;]|[^"<(,:;]++')
_ADDRESS_FIELDS = frozenset(
    {
        *("from", "sender", "reply-to", "to", "cc", "bcc", "disposition-notification-to", "return-receipt-to", "errors-to"),
        *("resent-from", "resent-sender", "resent-to", "resent-cc", "resent-bcc"),
    }
)

# Fields that this service writes, or that only mail servers may add.
_RESERVED = frozenset(
    {
        *("from", "sender", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version"),
        *("dkim-signature", "return-path", "authentication-results", "apparently-to"),
    }
)
_INSTEAD = {name: f" Use the `{name}` field." for name in ("from", "to", "cc", "bcc", "subject")}
_RESERVED_BEGINNINGS = ("arc-", "received", "resent-", "content-")


class HeaderError(ValueError):
    """An invalid field, with a message for the client."""


# --- writing ---------------------------------------------------------------------------------------------------------


def fold(name: str, tokens: Iterable[str]) -> str:
    """Writes a field, with a line break before each token that would make a line too long. Tokens include their leading space."""
    lines, line = [], name + ":"
    for token in tokens:
        if len(line) + len(token) > LINE:
            lines.append(line)
            line = token
        else:
            line += token
    if not lines:
        return line + "\r\n"
    lines.append(line)
    if max(map(len, lines)) > LONGEST_LINE:
        raise HeaderError(f"The header {name} has a word that is too long for a line. Divide it by spaces.")
    return "\r\n".join(lines) + "\r\n"


def unstructured(name: str, value: str) -> str:
    """Writes a field of plain text such as Subject. It decodes to exactly `value`."""
    if len(value) < LINE - 2 - len(name) and _needs_no_words(value):
        return f"{name}: {value}\r\n" if value else f"{name}:\r\n"
    _refuse_forbidden(name, value)
    if not value.strip(" ") or value[0] == " " or value[-1] == " ":
        return fold(name, [" " + word for word in encoded_word.encode(value)])
    return fold(name, _text_tokens(value, LINE - 10))


def custom(name: str, value: str, *, downgrade: bool = False) -> str:
    """Writes a field that the client gave. ASCII is kept as it is, because the field may be structured; other words are encoded.

    In an address field, a display name is encoded as a whole, without its quotes: an encoded word cannot be quoted (2047 §5).
    A non-ASCII address is refused, or with `downgrade` becomes text that cannot be replied to.
    """
    value = value.replace("\t", " ").strip(" ")
    if _PRINTABLE.fullmatch(value):
        return f"{name}: {value}\r\n" if len(value) < LINE - 2 - len(name) else fold(name, _TOKEN.findall(" " + value))
    _refuse_forbidden(name, value)
    if is_address_field(name):
        return fold(name, _address_tokens(name, value, downgrade))
    return fold(name, _text_tokens(value, LONGEST_LINE - 1, encoded_stays=True))


def _needs_no_words(value: str) -> bool:
    return bool(_PRINTABLE.fullmatch(value)) and "=?" not in value and value == value.strip(" ")


def _refuse_forbidden(name: str, value: str) -> None:
    if FORBIDDEN.search(value):
        raise HeaderError(f"The header {name} must not have line breaks, other control characters or lone surrogates.")


def _text_tokens(value: str, longest: int, encoded_stays: bool = False) -> list[str]:
    """Splits `value` into words. Consecutive words that need encoding are merged into encoded words."""
    tokens: list[tuple[bool, str]] = []
    for token in _TOKEN.findall(" " + value):
        plain = _PRINTABLE.fullmatch(token) and len(token) <= longest and (encoded_stays or "=?" not in token)
        if not plain and tokens and not tokens[-1][0]:
            tokens[-1] = (False, tokens[-1][1] + token)
        else:
            tokens.append((bool(plain), token))
    written: list[str] = []
    for number, (plain, token) in enumerate(tokens):
        written.extend([token] if plain else [" " + word for word in encoded_word.encode(_with_spaces(number, tokens))])
    return written


def _with_spaces(number: int, tokens: Sequence[tuple[bool, str]]) -> str:
    """The text to encode of a token: without its leading space, but with the spaces to an encoded word that stays.

    Readers drop the spaces between two encoded words (2047 §6.2).
    """
    before = tokens[number - 1][1] if number else ""
    token = tokens[number][1]
    after = tokens[number + 1][1] if number + 1 < len(tokens) else ""
    text = token if before.endswith("?=") and _has_word(before) else token[1:]
    if after.lstrip(" ").startswith("=?") and _has_word(after):
        text += " " * (len(after) - len(after.lstrip(" ")))
    return text


def _has_word(token: str) -> bool:
    return "=?" in token and encoded_word.decode(token) != token


def is_address_field(name: str) -> bool:
    return name.lower() in _ADDRESS_FIELDS


def _address_tokens(name: str, value: str, downgrade: bool) -> list[str]:
    tokens: list[str] = []
    names: list[str] = []  # parts of a display name, or an address without angle brackets
    in_group = False
    parts = (*_PART.findall(value), "")
    whole = 0  # up to here, comments belong to an address without angle brackets
    for at, part in enumerate(parts):
        kind = part[:1]
        if kind == "(" and at >= whole and not (text := "".join(names)).isascii() and "@" in text:
            whole = _end_after_comments(parts, at)
        if at < whole or kind not in ("<", "(", ",", ":", ";", ""):
            names.append(part)
            continue
        text = "" if kind == "(" else part if kind == "<" else "".join(names)
        international = not text.isascii() and ("@" in text or kind == "<")
        if international and not downgrade:
            raise HeaderError(f"An address in the header {name} must be in ASCII.")
        if international:
            shown = f"{_plain_name(names)} {part if kind == '<' else ''}".strip(" ")
            tokens += _comment(shown) if in_group else _empty_group(shown)
        else:
            tokens += _name_tokens(names)
        names.clear()
        in_group = kind == ":" or (in_group and kind != ";")
        if international and kind == "<":
            continue
        if kind == "(" and not part.isascii():
            tokens += _comment(part[1:].removesuffix(")"))
        elif kind in ("<", "("):
            tokens += _TOKEN.findall(" " + part)
        elif tokens:
            tokens[-1] += part
    return tokens


def _end_after_comments(parts: Sequence[str], at: int) -> int:
    """Where an address ends if only comments follow, otherwise 0."""
    while at < len(parts) - 1 and (parts[at].startswith("(") or parts[at].isspace()):
        at += 1
    return at if parts[at][:1] in (",", ";", "") else 0


def _name_tokens(parts: Sequence[str]) -> list[str]:
    text = "".join(parts).strip(" ")
    if not text or text.isascii():
        return _TOKEN.findall(" " + text) if text else []
    return [" " + word for word in encoded_word.encode(_plain_name(parts))]


def _plain_name(parts: Sequence[str]) -> str:
    text = "".join([re.sub(r"\\(.)", r"\1", part[1:].removesuffix('"')) if part[0] == '"' else part for part in parts]).strip(" ")
    return encoded_word.decode(text) if "=?" in text else text


def _empty_group(text: str) -> list[str]:
    """Writes a mailbox as the name of a group without addresses (6857 §3.1.8)."""
    tokens = [" " + word for word in encoded_word.encode(text)]
    return [*tokens, " :;"]


def _comment(text: str) -> list[str]:
    first, *words = encoded_word.encode(text)
    tokens = [f" ({first}", *[" " + word for word in words]]
    tokens[-1] += ")"
    return tokens


def phrase(name: str) -> list[str]:
    """Writes a display name as tokens of a phrase (5322 §3.2.5), without leading spaces."""
    if len(name) <= 60 and _needs_no_words(name):
        if _ATOMS.fullmatch(name):
            return name.split(" ")
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return [f'"{escaped}"']
    return encoded_word.encode(name)


def mailboxes(name: str, boxes: Sequence[Mailbox]) -> str:
    """Writes an address field. Only non-ASCII local parts are not encoded; they need SMTPUTF8 (6532 §3.2)."""
    if len(boxes) == 1 and not boxes[0].name:
        return fold(name, (" " + boxes[0].address,))
    tokens: list[str] = []
    for box in boxes:
        if box.name:
            tokens += [" " + word for word in phrase(box.name)]
            tokens.append(f" <{box.address}>,")
        else:
            tokens.append(f" {box.address},")
    tokens[-1] = tokens[-1][:-1]
    return fold(name, tokens)


def structured(name: str, value: str, parameters: Sequence[str] = ()) -> str:
    """Writes a MIME field with parameters from `parameters.encode`."""
    parts = [value, *parameters]
    return fold(name, [f" {part};" for part in parts[:-1]] + [f" {parts[-1]}"])


# --- custom fields ---------------------------------------------------------------------------------------------------


def check_custom(headers: Mapping[str, str]) -> None:
    """Raises HeaderError unless all of these can be added to a message."""
    seen: set[str] = set()
    for name, value in headers.items():
        lower = name.lower()
        if not _NAME.fullmatch(name):
            raise HeaderError(f"A header name must have 1 to {NAME_LIMIT} printable ASCII characters, without spaces or a colon.")
        if lower in _RESERVED or lower.startswith(_RESERVED_BEGINNINGS):
            raise HeaderError(f"The header {name} cannot be set.{_INSTEAD.get(lower, '')}")
        if lower in seen:
            raise HeaderError(f"The header {name} is given twice.")
        _refuse_forbidden(name, value)
        seen.add(lower)
    if "list-unsubscribe-post" in seen:
        _check_one_click({name.lower(): value for name, value in headers.items()})


def _check_one_click(headers: Mapping[str, str]) -> None:
    """8058 §3.1: requires the only valid value, and a List-Unsubscribe with exactly one HTTPS URI."""
    if headers["list-unsubscribe-post"].strip() != "List-Unsubscribe=One-Click":
        raise HeaderError("The header List-Unsubscribe-Post must be List-Unsubscribe=One-Click.")
    uris = re.findall(r"<\s*(https?):", headers.get("list-unsubscribe", ""), re.IGNORECASE)
    if [uri.lower() for uri in uris] != ["https"]:
        raise HeaderError("The header List-Unsubscribe-Post needs a List-Unsubscribe header with one https URL in angle brackets.")


# --- reading ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Field:
    name: str
    raw: bytes  # the text after the colon, still folded, without the final CRLF

    @property
    def value(self) -> str:
        """The value for people: unfolded, decoded and stripped."""
        text = charset.guess(self.raw).replace("\r\n", "").strip(" \t")
        return encoded_word.decode(text) if "=?" in text else text


_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_FIELD = re.compile(rb"([!-9;-~]++)[ \t]*+:(.*+)", re.DOTALL)
# Matches only at the start of lines, so that any input is parsed in linear time.
_WHOLE_FIELDS = re.compile(rb"^(([!-9;-~]++)[ \t]*+:([^\r\n]*+(?>(?:\r\n[ \t][^\r\n]*+)*))\r\n)", re.MULTILINE)


def split_message(message: bytes) -> tuple[bytes, int]:
    """Returns the header block, including the CRLF of its last field, and the position of the body."""
    if message.startswith(b"\r\n"):
        return b"", 2
    end = message.find(b"\r\n\r\n")
    if end < 0:
        return message, len(message)
    return message[: end + 2], end + 4


def split_fields(block: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Splits a header block into fields: each as it is with its CRLF, its name, and `Field.raw`.

    Raises HeaderError for a line that is not a field.
    """
    if not block.endswith(b"\r\n") and block:
        block += b"\r\n"
    fields = _WHOLE_FIELDS.findall(block)
    if sum([len(field[0]) for field in fields]) != len(block):
        raise HeaderError("The header has a line that is not a field.")
    return fields


def parse_fields(block: bytes, strict: bool = True) -> list[Field]:
    """Parses the fields of a header block. Without `strict`, lines that are not fields are skipped."""
    if strict:
        return [Field(name.decode("ascii"), raw) for _, name, raw in split_fields(block)]
    found = [_FIELD.fullmatch(line) for line in _FIELD_END.split(block.removesuffix(b"\r\n"))]
    return [Field(field[1].decode("ascii"), field[2]) for field in found if field is not None]
