"""What was found against what is expected, and what its owner has to do. Pure: each function says what is wrong, or None."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from mailsvc.domains.records import Record
from mailsvc.mail.authentication import dkim_key, spf
from mailsvc.net.dns import Mx

Problem = Literal[
    "missing", "unanswered", "differing", "doubled_name", "doubled_value", "wrong_region", "several", "quotes", "truncated", "other_key",
    "revoked", "testing", "hash", "service", "algorithm", "version", "unreadable", "not_covered", "too_many_lookups", "proxied", "other",
    "not_served", "held",
]  # fmt: skip

_SPACES = re.compile(r"\s+")


@attrs.frozen
class Wrong:
    """`told` is one or two sentences for the owner of the domain."""

    problem: Problem
    told: str


def mx(record: Record, found: Sequence[Mx], hosts: Mapping[str, str]) -> Wrong | None:
    """`hosts` has the host of each region."""
    names = [one.host for one in found]
    if not names:
        return missing(record)
    if record.value not in names:
        for name in names:
            elsewhere = _region_of(name, record.value, hosts)
            if elsewhere is not None:
                return Wrong("wrong_region", f"It points to {name}, the host of the region {elsewhere}. Point it to {record.value}.")
            if name.startswith(f"{record.value}."):
                return Wrong("doubled_value", f"It points to {name}: the DNS editor added the domain. End the value with a dot.")
        return Wrong("other", f"It points to {', '.join(names)}. Point it to {record.value}.")
    others = [name for name in names if name != record.value]
    if others:
        two = next((region for name in others if (region := _region_of(name, record.value, hosts))), None)
        which = f"the host of the region {two}" if two else "another host"
        return Wrong("several", f"Besides {record.value} there is {', '.join(others)}, {which}, so that bounces get lost. Remove it.")
    return None


def spf_record(record: Record, found: Sequence[str], hosts: Mapping[str, str], host: str) -> Wrong | Literal["evaluate"] | None:
    """`evaluate`: it is one readable record, but not the expected one, so that it has to be tried."""
    texts = [text for text in found if spf.is_spf(text)]
    quoted = [text for text in found if not spf.is_spf(text) and "v=spf1" in text.lower()]
    if len(texts) > 1:
        return Wrong("several", f"There are {len(texts)} SPF records, so that receivers accept none. Keep one: {record.value}")
    if not texts and quoted:
        return Wrong("quotes", "The value has quotation marks or other characters before v=spf1. Enter it without them.")
    if not texts:
        return missing(record)
    if _SPACES.sub(" ", texts[0]).strip().lower() == record.value.lower():
        return None
    for region, other in hosts.items():
        if _names(texts[0], other) and not _names(texts[0], host):
            return Wrong("wrong_region", f"It names {other}, the host of the region {region}. The expected value is: {record.value}")
    return "evaluate"


def spf_result(record: Record, verdict: str, why: str, address: str) -> Wrong | None:
    """What came of trying it with one of our addresses."""
    if verdict == "pass":
        return None
    expected = f"The expected value is: {record.value}"
    if verdict == "permerror":
        problem: Problem = "too_many_lookups" if "look-ups" in why else "unreadable"
        return Wrong(problem, f"Receivers cannot evaluate it: {why}. {expected}")
    if verdict == "temperror":
        return Wrong("unanswered", f"It could not be evaluated: {why}.")
    return Wrong("not_covered", f"It does not let {address} send ({verdict}: {why}). {expected}")


def dkim(record: Record, found: Sequence[str]) -> Wrong | None:
    keys = [text for text in found if "p=" in text or "DKIM1" in text] or list(found)
    if not keys:
        return missing(record)
    if len(keys) > 1:
        return Wrong("several", f"There are {len(keys)} TXT records at this name. Keep the expected one.")
    wrong = dkim_key.compare(keys[0], record.key or record.value)
    if wrong is None:
        return None
    remedy = {
        "truncated": "Enter the whole value; an editor that takes 255 characters at most wants it in several quoted parts.",
        "quotes": "Enter the value without quotation marks, or as the editor's own parts.",
        "testing": "Remove t=y.",
    }.get(wrong.fault, "Replace it by the expected value.")
    return Wrong(wrong.fault, f"The key is not usable: {wrong.why}. {remedy}")


def cname(record: Record, found: Sequence[str], addresses: Sequence[str], served: Sequence[str] | None) -> Wrong | None:
    """`addresses` stand at the name itself; `served` is what the operator's zone has at its end, None when nobody could say."""
    if not found:
        if addresses:
            return Wrong("proxied", "The name has addresses in place of the CNAME: it is proxied. Switch the proxy off, to DNS only.")
        return missing(record)
    if found[0] != record.value:
        if found[0].startswith(f"{record.value}."):
            return Wrong("doubled_value", f"It leads to {found[0]}: the DNS editor added the domain. End the value with a dot.")
        return Wrong("other", f"It leads to {found[0]}. Let it lead to {record.value}.")
    if record.key is not None and (served is None or not any(dkim_key.compare(text, record.key) is None for text in served)):
        return Wrong("not_served", f"The CNAME is right, but {record.value} has not the key yet. That is for the operator to mend.")
    return None


# Problems of a DKIM record that leave no doubt that it is not there. With all others, such as no answer, it may be.
GONE: frozenset[str] = frozenset({"missing", "doubled_name", "doubled_value", "other", "other_key", "revoked", "proxied"})


def missing(record: Record) -> Wrong:
    return Wrong("missing", f"There is no {record.type} record at {record.name}. Publish the expected one.")


def doubled(record: Record, name: str, entered: str) -> Wrong:
    return Wrong("doubled_name", f"The record stands at {name}: the DNS editor added the domain to the name. Enter {entered} as its name.")


def _names(text: str, host: str) -> bool:
    """Whether a term of the record leads to this host."""
    return re.search(rf"[:=]{re.escape(host)}(?![\w.-])", text, re.IGNORECASE) is not None


def _region_of(name: str, own: str, hosts: Mapping[str, str]) -> str | None:
    return next((region for region, host in hosts.items() if host == name and host != own), None)
