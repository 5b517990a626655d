"""MTA-STS (RFC 8461): the record that announces a domain's policy, and the policy itself.

Fetching and keeping it: delivery/connection/mta_sts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import attrs

Mode = Literal["enforce", "testing", "none"]
LONGEST = 31_557_600  # seconds (8461 §3.2)
MOST_OCTETS = 64 * 1024  # 8461 §3.3

_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_FIELD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")


class BadPolicy(ValueError):
    """A phrase: what is wrong with it."""


@attrs.frozen
class Policy:
    """Which hosts may take the domain's mail, and whether that is binding. `mx`: names, or patterns `*.example.com`."""

    mode: Mode
    max_age: int
    mx: tuple[str, ...] = ()

    def allows(self, host: str) -> bool:
        """A pattern's star stands for one label (8461 §4.1)."""
        name = host.lower().rstrip(".")
        parent = name.partition(".")[2]
        return any(parent == each[2:] if each.startswith("*.") else name == each for each in self.mx)


def policy_id(records: Iterable[str]) -> str | None:
    """The id that the TXT records at `_mta-sts` announce; None: there is no policy.

    Anything but exactly one record that begins with the version counts as none (8461 §3.1).
    """
    ours = [record for record in records if record.startswith("v=STSv1") and record[7:].lstrip(" \t")[:1] == ";"]
    if len(ours) != 1:
        return None
    found = None
    for field in ours[0].split(";")[1:]:
        key, equals, value = (part.strip(" \t") for part in field.partition("="))
        if not key and not equals:
            continue
        if not equals or not _FIELD.fullmatch(key):
            return None
        if key == "id" and found is None:  # the first of several counts
            found = value
    return found if found is not None and _ID.fullmatch(found) else None


def parse(body: bytes) -> Policy:
    """The policy in a file. Unknown keys mean nothing, of repeated ones the first counts, but for `mx` (8461 §3.2)."""
    if len(body) > MOST_OCTETS:
        raise BadPolicy("the policy is too long")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise BadPolicy("the policy is not UTF-8") from None
    first: dict[str, str] = {}
    mx: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if not line.strip(" \t"):
            continue
        key, colon, value = (part.strip(" \t") for part in line.partition(":"))
        if not colon or not _FIELD.fullmatch(key):
            raise BadPolicy("a line of the policy is not a key and a value")
        if key == "mx":
            mx.append(value)
        else:
            first.setdefault(key, value)
    return _checked(first, mx)


def _checked(first: dict[str, str], mx: list[str]) -> Policy:
    if first.get("version") != "STSv1":
        raise BadPolicy("the policy is of no version that is known")
    mode = first.get("mode")
    if mode not in ("enforce", "testing", "none"):
        raise BadPolicy("the policy's mode is none of enforce, testing, none")
    age = first.get("max_age", "")
    if not re.fullmatch(r"[0-9]{1,10}", age):
        raise BadPolicy("the policy has no max_age")
    if mode != "none" and not mx:
        raise BadPolicy("the policy names no mx")
    wrong = [each for each in mx if not _HOST.fullmatch(each)]
    if wrong:
        raise BadPolicy("an mx of the policy is no host name")
    return Policy(mode, min(int(age), LONGEST), tuple(each.lower() for each in mx))  # type: ignore[arg-type]
