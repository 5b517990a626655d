"""MTA-STS (RFC 8461): the record that announces a domain's policy, and the policy itself. Pure.

delivery/connection/mta_sts fetches and stores policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import attrs

Mode = Literal["enforce", "testing", "none"]
LONGEST = 31_557_600  # seconds (8461 §3.2)
MAX_SIZE = 64 * 1024  # 8461 §3.3

_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_FIELD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")


class BadPolicy(ValueError):
    """The policy is invalid. The text is a phrase that says why."""


@attrs.frozen
class Policy:
    """The hosts that may receive mail for the domain, and whether this is enforced. `mx`: names, or patterns such as `*.example.com`."""

    mode: Mode
    max_age: int
    mx: tuple[str, ...] = ()

    def allows(self, host: str) -> bool:
        """Whether a name or pattern matches `host`. The star of a pattern matches one label (8461 §4.1)."""
        name = host.lower().rstrip(".")
        parent = name.partition(".")[2]
        return any(parent == each[2:] if each.startswith("*.") else name == each for each in self.mx)


def policy_id(records: Iterable[str]) -> str | None:
    """Returns the ID in the TXT records at `_mta-sts`, or None if there is no policy.

    There must be exactly one record that begins with the version (8461 §3.1).
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
        if key == "id" and found is None:  # if repeated, the first one counts
            found = value
    return found if found is not None and _ID.fullmatch(found) else None


def parse(body: bytes) -> Policy:
    """Parses a policy file. Unknown keys are ignored. If a key other than `mx` is repeated, the first one counts (8461 §3.2)."""
    if len(body) > MAX_SIZE:
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
            mx.append(value.removesuffix("."))  # the dot of the root, which others accept too
        else:
            first.setdefault(key, value)
    return _checked(first, mx)


def _checked(first: dict[str, str], mx: list[str]) -> Policy:
    if first.get("version") != "STSv1":
        raise BadPolicy("the policy's version is missing or unknown")
    mode = first.get("mode")
    if mode not in ("enforce", "testing", "none"):
        raise BadPolicy("the policy's mode is not enforce, testing or none")
    age = first.get("max_age", "")
    if not re.fullmatch(r"[0-9]{1,10}", age):
        raise BadPolicy("the policy has no max_age")
    if mode != "none" and not mx:
        raise BadPolicy("the policy has no mx")
    wrong = [each for each in mx if not _HOST.fullmatch(each)]
    if wrong:
        raise BadPolicy("an mx of the policy is not a host name")
    return Policy(mode, min(int(age), LONGEST), tuple(each.lower() for each in mx))  # type: ignore[arg-type]
