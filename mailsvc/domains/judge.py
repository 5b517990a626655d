"""Compares the DNS records that were found with the expected ones. Pure: each function returns the defect, or None."""

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


@attrs.frozen
class Defect:
    """`message`: what is defect and what to do, in one or two sentences for the owner of the domain."""

    problem: Problem
    message: str


def mx(record: Record, found: Sequence[Mx], hosts: Mapping[str, str]) -> Defect | None:
    """`hosts`: the mail host of each region."""
    names = [one.host for one in found]
    if not names:
        return missing(record)
    if record.value not in names:
        for name in names:
            elsewhere = _region_of(name, record.value, hosts)
            if elsewhere is not None:
                return Defect("wrong_region", f"It points to {name}, the host of region {elsewhere}. Change it to {record.value}.")
            if name.startswith(f"{record.value}."):
                return Defect("doubled_value", f"It points to {name}: your DNS provider appended the domain. End the value with a dot.")
        return _elsewhere(record, ", ".join(names))
    others = [name for name in names if name != record.value]
    if others:
        two = next((region for name in others if (region := _region_of(name, record.value, hosts))), None)
        which = f"the host of region {two}" if two else "another host"
        return Defect("several", f"In addition to {record.value} there is {', '.join(others)}, {which}, so bounces get lost. Remove it.")
    return None


def spf_record(record: Record, found: Sequence[str], hosts: Mapping[str, str], host: str) -> Defect | Literal["evaluate"] | None:
    """`evaluate`: there is one valid record, but not the expected one, so it has to be evaluated."""
    texts = [text for text in found if spf.is_spf(text)]
    quoted = [text for text in found if not spf.is_spf(text) and "v=spf1" in text.lower()]
    if len(texts) > 1:
        return Defect("several", f"There are {len(texts)} SPF records, so receivers ignore all of them. Keep only: {record.value}")
    if not texts and any(text.lower().startswith("v=spf1") for text in quoted):
        advice = f"Several strings of a value are joined without spaces. Replace it with: {record.value}"
        return Defect("unreadable", f"There is no space after v=spf1, so receivers ignore the record. {advice}")
    if not texts and quoted:
        return Defect("quotes", "The value has quotation marks or other characters before v=spf1. Remove them.")
    if not texts:
        return missing(record)
    if " ".join(filter(None, texts[0].lower().split(" "))) == record.value.lower():  # 7208 §4.6.1: spaces, not tabs
        return None
    for region, other in hosts.items():
        if _names(texts[0], other) and not _names(texts[0], host):
            return Defect("wrong_region", f"It names {other}, the host of region {region}. The expected value is: {record.value}")
    return "evaluate"


def spf_result(record: Record, verdict: str, why: str, address: str) -> Defect | None:
    """The defect if one of our addresses does not pass."""
    if verdict == "pass":
        return None
    expected = f"The expected value is: {record.value}"
    if verdict == "permerror":
        problem: Problem = "too_many_lookups" if "lookups" in why else "unreadable"
        return Defect(problem, f"Receivers cannot evaluate it: {why}. {expected}")
    if verdict == "temperror":
        return Defect("unanswered", f"It could not be evaluated: {why}.")
    return Defect("not_covered", f"It does not authorize {address} ({verdict}: {why}). {expected}")


def dkim(record: Record, found: Sequence[str]) -> Defect | None:
    others = [text for text in found if not spf.is_spf(text)]  # an SPF record here comes from a wildcard
    keys = [text for text in others if "p=" in text or "DKIM1" in text] or others
    if not keys:
        return missing(record)
    if len(keys) > 1:
        return Defect("several", f"There are {len(keys)} TXT records at this name. Keep only the expected one.")
    defect = dkim_key.compare(keys[0], record.key or record.value)
    if defect is None:
        return None
    remedy = {
        "truncated": "Enter the complete value. If it is limited to 255 characters, split it into several quoted strings.",
        "quotes": "Enter the value without quotation marks.",
        "testing": "Remove t=y.",
    }.get(defect.fault, "Replace it with the expected value.")
    return Defect(defect.fault, f"The key cannot be used: {defect.why}. {remedy}")


def cname(record: Record, found: Sequence[str], addresses: Sequence[str], served: Sequence[str] | None) -> Defect | None:
    """`addresses`: of the name itself; `served`: the TXT records at the target in the operator's zone, None if unknown."""
    if not found:
        if addresses:
            return Defect("proxied", "The name has addresses instead of the CNAME, so a proxy is enabled. Turn the proxy off (DNS only).")
        return missing(record)
    if found[0] != record.value:
        if found[0].startswith(f"{record.value}."):
            return Defect("doubled_value", f"It points to {found[0]}: your DNS provider appended the domain. End the value with a dot.")
        return _elsewhere(record, found[0])
    if record.key is not None and (served is None or not any(dkim_key.compare(text, record.key) is None for text in served)):
        return Defect(
            "not_served",
            f"The CNAME is correct, but {record.value} does not have the key yet. The operator of this service has to fix this.",
        )
    return None


# Problems that prove that a DKIM record is absent. With any other problem, such as no answer, it may still exist.
ABSENT: frozenset[str] = frozenset({"missing", "doubled_name", "doubled_value", "other", "other_key", "revoked", "proxied"})

# Problems of a record that somebody made for this domain, not of one that a wildcard answers with.
OURS: frozenset[str] = frozenset({"doubled_value", "wrong_region", "quotes", "truncated", "not_served"})


def missing(record: Record) -> Defect:
    return Defect("missing", f"There is no {record.type} record at {record.name}. Add it.")


def _elsewhere(record: Record, target: str) -> Defect:
    """A wildcard that answers has no record at the name that could be changed."""
    remedy = f"Change it to {record.value}, or add the {record.type} record if a wildcard answered."
    return Defect("other", f"It points to {target}. {remedy}")


def behind_cname(record: Record, target: str) -> Defect:
    """A name has nothing beside a CNAME. One that comes from a wildcard gives way to any record at the name."""
    advice = f"Delete the CNAME, unless it comes from a wildcard, and add the {record.type} record."
    return Defect("missing", f"{record.name} is a CNAME to {target}, which has no such {record.type} record. {advice}")


def doubled(record: Record, name: str, entered: str) -> Defect:
    return Defect(
        "doubled_name", f"The record is at {name}: your DNS provider appended the domain to the name. Enter {entered} as the name."
    )


def _names(text: str, host: str) -> bool:
    """Whether a term of the record names this host."""
    return re.search(rf"[:=]{re.escape(host)}(?![\w.-])", text, re.IGNORECASE) is not None


def _region_of(name: str, own: str, hosts: Mapping[str, str]) -> str | None:
    return next((region for region, host in hosts.items() if host == name and host != own), None)
