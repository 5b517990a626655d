"""Email addresses (RFC 5321 §4.1.2, 5322 §3.4, 6531): mailboxes in API requests, and paths in SMTP commands.

Writing addresses in a header: header. Who may send from an address: policy.
"""

from __future__ import annotations

import ipaddress
import re

import attrs
import idna
from email_validator import EmailNotValidError, validate_email

from mailsvc.mail import encoded_word

LOCAL_LIMIT = 64  # 5321 §4.5.3.1.1
DOMAIN_LIMIT = 253  # 5321 §4.5.3.1.2 says 255, including the final dot and the length byte
ADDRESS_LIMIT = 254  # 5321 §4.5.3.1.3: 256 with the angle brackets
NAME_LIMIT = 998
_TEXT_LIMIT = 2 * NAME_LIMIT + ADDRESS_LIMIT + 16  # with every character of the name escaped

_ATEXT = r"a-zA-Z0-9!#$%&'*+/=?^_`{|}~\-"
_BEYOND = r"\u00a0-\u2027\u202a-\ud7ff\ue000-\U0010ffff"  # 6531 §3.3, without C1 controls, line separators, surrogates
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"  # no host name has _, but some domains with mailboxes do

_DOT_ATOM = re.compile(rf"[{_ATEXT}{_BEYOND}]++(?>(?:\.[{_ATEXT}{_BEYOND}]++)*)")
_DOTTED = re.compile(rf"[{_ATEXT}.{_BEYOND}]++")  # with dots anywhere
_QUOTED = re.compile(rf'"(?>(?:[ !#-\[\]-~{_BEYOND}]|\\[ -~])*)"')  # 5321 §4.1.2 Quoted-string
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Hot path of parse_mailbox, in one match: no quoting, no Unicode, no A-label, no reserved domain.
_COMMON = re.compile(
    rf"(?:([A-Za-z0-9][A-Za-z0-9 .!#$&'*+/_-]*+)<)?([{_ATEXT}]{{1,64}}(?:\.[{_ATEXT}]+)*)@"
    rf"((?:(?!..--){_LABEL}\.)+(?!(?:arpa|invalid|local|localhost|onion)>?$)[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?)(>?)",
    re.IGNORECASE,
)
_NAMED = re.compile(r'(?P<name>"(?>(?:[^"\\]|\\.)*)" *+|[^<>]*)<(?P<address>(?>(?:"(?>(?:[^"\\]|\\.)*)"|[^<>"])+))>')
_QUOTED_NAME = re.compile(r'"(?>(?:[^"\\]|\\.)*)"')
_WORDS = re.compile(r'"(?>(?:[^"\\]|\\.)*)"?|[^"]++')  # of a name; a closing quote can be missing
_SPECIAL = re.compile(r'[<>@,;:"\\]|=\?')  # a name with any of these is displayed in quotes


class AddressError(ValueError):
    """Why a text is not an address: a message for the client, which does not repeat the address."""


class NeedsSmtputf8(AddressError):
    """A valid address that needs SMTPUTF8 (6531), in a transaction without it."""


def _size(text: str) -> int:
    """Returns the number of bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def quoted_if_dotted(local: str) -> str:
    """Quotes a local part whose dots are only valid in quotes (5321 §4.1.2). Such mailboxes exist, and are written without quotes."""
    return f'"{local}"' if _DOTTED.fullmatch(local) and not _DOT_ATOM.fullmatch(local) else local


def _valid_local(_: object, __: object, local: str) -> None:
    if _size(local) > LOCAL_LIMIT:
        raise AddressError(f"The part before the @ is longer than {LOCAL_LIMIT} bytes.")
    if not (_DOT_ATOM.fullmatch(local) or _QUOTED.fullmatch(local)):
        raise AddressError("The part before the @ has characters that are not allowed.")


def _valid_domain(_: object, __: object, domain: str) -> None:
    if len(domain) > DOMAIN_LIMIT or not _DOMAIN.fullmatch(domain):
        raise AddressError("The part after the @ is not a domain name.")


def _valid_name(_: object, __: object, name: str) -> None:
    if len(name) > NAME_LIMIT:
        raise AddressError(f"The display name is longer than {NAME_LIMIT} characters.")
    if _CONTROL.search(name):
        raise AddressError("The display name has control characters.")


@attrs.frozen
class Mailbox:
    """An address with a display name. Its contents are safe to write to a header."""

    name: str = attrs.field(validator=_valid_name)
    local: str = attrs.field(validator=_valid_local)  # as in SMTP, including quotes
    domain: str = attrs.field(validator=_valid_domain)  # A-labels, lowercase

    def __attrs_post_init__(self) -> None:
        if _size(self.local) + 1 + len(self.domain) > ADDRESS_LIMIT:
            raise AddressError(f"The address is longer than {ADDRESS_LIMIT} bytes.")

    @property
    def address(self) -> str:
        return f"{self.local}@{self.domain}"

    @property
    def needs_smtputf8(self) -> bool:
        return not self.local.isascii()

    @property
    def display(self) -> str:
        """As people write it. `parse_mailbox` parses it."""
        if not self.name:
            return self.address
        if self.name == self.name.strip() and not _SPECIAL.search(self.name):
            return f"{self.name} <{self.address}>"
        escaped = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}" <{self.address}>'


def parse_mailbox(text: str, *, received: bool = False) -> Mailbox:
    """Parses `a@b.c`, `<a@b.c>`, `Name <a@b.c>` or `"Name" <a@b.c>`. Raises AddressError.

    Commas, colons and parentheses in a name have no special meaning, because the text is a single mailbox. `received`: it is from a
    header that stays unchanged, where encoded words may contain tabs and line ends (2047 §2).
    """
    if len(text) > _TEXT_LIMIT:
        raise AddressError("The address is too long.")
    common = _COMMON.fullmatch(text)
    if common is not None and (common[1] is None) == (common[4] == "") and len(common[2]) <= LOCAL_LIMIT:
        return Mailbox(common[1].rstrip(" ") if common[1] else "", common[2], common[3].lower())
    if _CONTROL.search(text):
        raise AddressError("An address must not have line breaks or other control characters.")
    text = text.strip()
    if not text:
        raise AddressError("The address is empty.")
    if text.endswith(";"):
        raise AddressError("Groups of addresses are not supported; list each address separately.")
    if not text.endswith(">"):
        return _bare("", text)
    named = _NAMED.fullmatch(text)
    if named is None:
        raise AddressError(_why_not_named(text))
    return _bare(_display_name(named["name"].strip(), received), named["address"].strip())


def _why_not_named(text: str) -> str:
    if text.count("<") > 1:
        return "This is more than one address; list each separately."
    return "Write the address as email@example.com or Name <email@example.com>."


def _display_name(written: str, received: bool) -> str:
    """Decodes quotes and encoded words (RFC 2047). Quotes within a name are part of it, as in Jane "JD" Doe."""
    if _QUOTED_NAME.fullmatch(written):
        return _unquoted(written)
    if written.count('"') % 2:
        raise AddressError("The display name has unmatched quotes.")
    if "@" in written and "," in written:
        raise AddressError("This is more than one address; list each separately.")
    if "=?" in written:
        decoded = encoded_word.decode(written)
        return _CONTROL.sub(" ", decoded).strip() if received else decoded
    if not written.startswith('"'):
        return written
    return "".join([_unquoted(word) if word.startswith('"') else word for word in _WORDS.findall(written)])  # 5322 §3.2.5 phrase


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:].removesuffix('"'))


def _bare(name: str, text: str) -> Mailbox:
    if text.startswith("(") or text.endswith(")"):
        raise AddressError("Comments in parentheses are not supported in an address.")
    common = _COMMON.fullmatch(text)
    if common is not None and not common[1] and not common[4]:  # email_validator refuses domains with _
        return Mailbox(name, common[2], common[3].lower())
    local, at, domain = text.rpartition("@")
    text = f"{quoted_if_dotted(local)}{at}{domain}"
    try:
        valid = validate_email(
            text,
            check_deliverability=False,
            globally_deliverable=False,
            test_environment=True,
            allow_quoted_local=True,
            allow_domain_literal=False,
        )
    except EmailNotValidError as error:
        if _has_two(text) and not text.startswith('"'):
            raise AddressError("This is more than one address; list each separately.") from None
        raise AddressError(str(error)) from None
    except (ValueError, UnicodeError):
        raise AddressError("The address is not valid.") from None
    domain = valid.ascii_domain.lower()
    if not _has_public_form(domain):
        raise AddressError("The part after the @ must be a full domain name such as example.com.")
    return Mailbox(name, valid.local_part, domain)


def _has_two(text: str) -> bool:
    """Whether there is a separator before an @, with something between the two."""
    return any("," in part[:-1] or ";" in part[:-1] for part in text.split("@")[:-1])


def _has_public_form(domain: str) -> bool:
    """Whether it has at least two labels and cannot be taken for an IPv4 address."""
    return "." in domain and not domain.rpartition(".")[2].isdigit()


# --- SMTP commands ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Path:
    """The address in MAIL FROM or RCPT TO, without a source route (5321 §3.3, §4.1.1.3)."""

    local: str = ""  # as in SMTP, including quotes
    domain: str = ""  # A-labels in lowercase, or an address literal in square brackets

    @property
    def address(self) -> str:
        """Empty for `<>`; without @ for `<postmaster>`."""
        return f"{self.local}@{self.domain}" if self.domain else self.local

    @property
    def null(self) -> bool:
        return not self.local

    @property
    def literal(self) -> bool:
        return self.domain.startswith("[")

    @property
    def qualified(self) -> bool:
        """Whether the domain is a full domain name."""
        return not self.literal and _has_public_form(self.domain)

    @property
    def needs_smtputf8(self) -> bool:
        return not self.local.isascii()


# Hot path of parse_path, in one match: no source route, no quoting, no Unicode, no literal.
_PLAIN_PATH = re.compile(
    rf"<([{_ATEXT}]++(?>(?:\.[{_ATEXT}]++)*))@({_DOMAIN.pattern})>(?: .*+)?".encode("ascii"), re.IGNORECASE | re.DOTALL
)
_PATH = re.compile(
    r" ?<(?>(?:@[a-zA-Z0-9.,@-]*+:)?)"  # a source route is ignored
    rf'(?P<local>[{_ATEXT}.{_BEYOND}]++|"(?>(?:[ !#-\[\]-~{_BEYOND}]|\\[ -~])*)")'
    rf"(?>(?:@(?P<domain>\[[!-Z^-~]*+\]|[a-zA-Z0-9._{_BEYOND}-]++))?)>"
)


def parse_path(text: bytes, smtputf8: bool) -> tuple[Path, bytes]:
    """Parses the text after `MAIL FROM:` or `RCPT TO:`. Returns the path and the parameters after it.

    Takes linear time. Raises AddressError, or NeedsSmtputf8 if only the extension is missing.
    """
    plain = _PLAIN_PATH.fullmatch(text)
    if plain is not None and len(plain[1]) <= LOCAL_LIMIT and plain.end(2) <= ADDRESS_LIMIT + 1:
        local, domain = plain[1].decode("ascii"), plain[2].decode("ascii").lower()
        if "xn--" not in domain:  # an A-label must be validated
            return Path(local, domain), text[plain.end(2) + 1 :].strip(b" ")
    return _parse_any_path(text, smtputf8)


def _parse_any_path(text: bytes, smtputf8: bool) -> tuple[Path, bytes]:
    path, rest = _split_path(text)
    try:
        written = path.decode("utf-8")
    except UnicodeDecodeError:
        raise AddressError("The address is not valid UTF-8.") from None
    if written in ("<>", " <>"):
        return Path(), rest
    found = _PATH.fullmatch(written)
    if found is None:
        raise AddressError("The address is not valid.")
    result = _checked_path(found["local"], found["domain"])
    if not smtputf8 and not written.isascii():
        raise NeedsSmtputf8("This address needs SMTPUTF8.")
    return result, rest


_PATH_BYTES = re.compile(rb' ?<(?>(?:[^<>"\x00-\x1f\x7f]++|"(?>(?:[^"\\\x00-\x1f\x7f]|\\[ -~])*)")*)>')
_ROUTE_LIMIT = 1024


def _split_path(text: bytes) -> tuple[bytes, bytes]:
    found = _PATH_BYTES.match(text)
    if found is None or found.end() > _ROUTE_LIMIT:
        raise AddressError("The address is not valid; it must be in angle brackets.")
    rest = text[found.end() :]
    if rest and not rest.startswith(b" "):
        raise AddressError("A space must separate the address from its parameters.")
    return found[0], rest.strip(b" ")


def _checked_path(local: str, domain: str | None) -> Path:
    local = quoted_if_dotted(local)
    _valid_local(None, None, local)
    if domain is None:
        if local.lower() != "postmaster":  # 5321 §4.1.1.3: the only one that needs no domain
            raise AddressError("The address has no domain.")
        return Path(local)
    path = Path(_least_quoted(local), _literal(domain) if domain.startswith("[") else _ascii_domain(domain))
    if len(path.address.encode()) > ADDRESS_LIMIT:
        raise AddressError(f"The address is longer than {ADDRESS_LIMIT} bytes.")
    return path


def _least_quoted(local: str) -> str:
    """The shortest form of the same local part (5321 §4.1.2): the suppression list knows an address in this form."""
    if not local.startswith('"'):
        return local
    text = _unquoted(local)
    return text if _DOT_ATOM.fullmatch(text) else '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _literal(text: str) -> str:
    """Normalizes an address literal (5321 §4.1.3)."""
    try:
        if "%" in text:
            raise ValueError("a zone ID is only valid locally")
        if text[1:6].lower() == "ipv6:":
            return f"[IPv6:{ipaddress.IPv6Address(text[6:-1])}]"
        return f"[{ipaddress.IPv4Address(text[1:-1])}]"
    except ValueError:
        raise AddressError("The address literal is not an IP address.") from None


def _ascii_domain(text: str) -> str:
    domain = text.lower()
    if len(text) > DOMAIN_LIMIT:
        raise AddressError(f"The part after the @ is longer than {DOMAIN_LIMIT} bytes.")
    if not domain.isascii() or "xn--" in domain:
        try:
            domain = idna.encode(domain, uts46=True, std3_rules=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise AddressError("The part after the @ is not a domain name.") from None
    _valid_domain(None, None, domain)
    return domain
