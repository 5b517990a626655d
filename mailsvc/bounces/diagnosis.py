"""Classifies a server's reply: what is wrong, who must act, and advice. Pure; the rules are data, in diagnosis.toml.

Deciding whether to retry: delivery/classify for replies, store/events/async_bounces for reports that arrive later.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Literal

import attrs

from mailsvc.mail.reply import Reply, enhanced_codes, refusal
from mailsvc.outcome import BounceType, Meaning

# What the reply answers. "ours": we wrote the reply in place of the server; "report": a report quotes it without saying what it answered.
Stage = Literal["greeting", "mail", "rcpt", "data", "dot", "ours", "report"]

_REPLY_MAX = 1000  # characters of a reply that are examined
_ADDRESS = re.compile(r"<?[^\s<>@]{1,64}@[^\s<>@]{1,255}>?")  # ignored: an address such as spam@full.example would match rules
_PATH = re.compile(r"(https?://[^\s/<>]{1,255}/)[^\s<>]{1,500}")  # ignored, likewise
_ENHANCED_WITHIN = 200  # characters of a text that has no enhanced code where it belongs
_CASE = re.compile(r"\\.|[A-Z]")  # an escape such as \S, which stays, or a letter
_RETRY_NOTE = "We'll retry automatically until the email expires."


@attrs.frozen
class Class:
    """A kind of problem.

    `suppress`: a 5yz reply means that the address itself is invalid. `retry_permanent`: a 5yz reply is about us, not about this email.
    """

    name: str
    meaning: Meaning
    type: BounceType
    sub_type: str
    suppress: bool = False
    retry_permanent: bool = False


@attrs.frozen
class Rule:
    """A row of diagnosis.toml. An empty condition matches anything; `hosts` are suffixes of mail servers' names.

    `mark`: what shows that a reply is of one of them, if a report quotes it without the server's name.
    """

    id: str
    kind: Class
    source: str
    hosts: tuple[str, ...] = ()
    mark: re.Pattern[str] | None = None
    digit: int | None = None
    codes: tuple[int, ...] = ()
    enhanced: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    stages: tuple[Stage, ...] = ()
    samples: tuple[str, ...] = ()
    certain: bool = False

    def matches(self, reply: PreparedReply) -> bool:
        if self.hosts and not reply.host.endswith(self.hosts) and not self._marks(reply):
            return False
        if (self.digit is not None and reply.code // 100 != self.digit) or (self.codes and reply.code not in self.codes):
            return False
        if (self.stages and reply.stage not in self.stages) or (self.enhanced and not self._matches_enhanced(reply.subject)):
            return False
        if self.text is not None and not self.text.search(reply.text):
            return False
        return self.unless is None or not self.unless.search(reply.text)

    def _marks(self, reply: PreparedReply) -> bool:
        return self.mark is not None and reply.stage == "report" and bool(self.mark.search(reply.text))

    def _matches_enhanced(self, subject: str) -> bool:
        return any(subject.startswith(each) if each.endswith(".") else subject == each for each in self.enhanced)


@attrs.frozen
class PreparedReply:
    """A reply in the form that rules match. `subject`: the enhanced code without its first digit; `host`: with a leading dot."""

    code: int
    subject: str
    text: str
    host: str
    stage: Stage


@attrs.frozen
class Diagnosis:
    """The result for one reply. `suppress` and `retry_permanent` take its code into account: a 4yz sets neither.

    `stated`: the text or the provider says it, not only a code.
    """

    meaning: Meaning
    type: BounceType
    sub_type: str
    suppress: bool
    retry_permanent: bool
    stated: bool


@attrs.frozen
class Rules:
    """All rules, in the order in which they are tried. What matches `doubt` does not suppress an address: its class is `instead`."""

    classes: Mapping[str, Class]
    rows: tuple[Rule, ...]
    doubt: re.Pattern[str]
    instead: Class


def diagnose(reply: Reply, host: str, stage: Stage) -> Diagnosis:
    """Classify the refusal `reply` of the mail server `host`."""
    reason = refusal(reply)
    prepared = _prepared(reason, host, stage)
    found, kind = _match(prepared)
    meaning = attrs.evolve(kind.meaning, rule=found.id if found is not None else "none")
    permanent = reply.permanent
    stated = found is not None and (found.text is not None or bool(found.hosts))
    suppress = kind.suppress and permanent and reason.permanent and not _later(reason)
    return Diagnosis(meaning, kind.type, kind.sub_type, suppress, kind.retry_permanent and permanent, stated)


@lru_cache(maxsize=256)  # the recipients of one email often get the same reply
def _match(reply: PreparedReply) -> tuple[Rule | None, Class]:
    found = next((rule for rule in rules().rows if rule.matches(reply)), None)
    if found is None:
        return None, rules().classes["undetermined"]
    doubtful = found.kind.suppress and not found.certain and rules().doubt.search(reply.text)
    return found, rules().instead if doubtful else found.kind


def _prepared(reply: Reply, host: str, stage: Stage) -> PreparedReply:
    text = " ".join(str(reply)[:_REPLY_MAX].split())
    if reply.enhanced:  # of the other lines of a reply, written as one
        for again in (f" {reply.code}-{reply.enhanced} ", f" {reply.code} {reply.enhanced} "):
            text = text[:1] + text[1:].replace(again, " ")
    text = _PATH.sub(r"\1", _ADDRESS.sub("<@>", text)).lower()
    enhanced = reply.enhanced or next(iter(enhanced_codes(reply.text[:_ENHANCED_WITHIN])), "")
    return PreparedReply(reply.code, enhanced.partition(".")[2], text, "." + host.lower().rstrip("."), stage)


def _later(reply: Reply) -> bool:
    """Whether a 5yz has an enhanced code that says that the failure is temporary, such as `550 4.4.7`."""
    return reply.enhanced is None and any(code.startswith("4") for code in enhanced_codes(reply.text[:_ENHANCED_WITHIN]))


def known(name: str, *, retried: bool = False) -> Meaning | None:
    """The meaning of a class, regardless of the rule; None if the class no longer exists. `retried`: the email is still retried."""
    found = rules().classes.get(name)
    if found is None:
        return None
    return found.meaning.while_retried() if retried else found.meaning


@cache
def rules() -> Rules:
    """Parsed once. Raises if the file is invalid."""
    data = tomllib.loads((resources.files("mailsvc.bounces") / "diagnosis.toml").read_text("utf-8"))
    classes = {name: _class(name, row) for name, row in data["class"].items()}
    tables = [*data["provider"].values(), data["text"], data["enhanced"], data["vague"], data["basic"]]
    rows = tuple(rule for table in tables for rule in _table(table, classes))
    doubt = _pattern(data["doubt"]["text"])
    assert doubt is not None
    return Rules(classes, rows, doubt, classes[data["doubt"]["instead"]])


def _class(name: str, row: Mapping[str, Any]) -> Class:
    kind, sub_type = row["bounce"]
    retrying = f"{row.get('retrying', row['advice'])} {_RETRY_NOTE}"
    meaning = Meaning(name, "class", row["party"], row["explanation"], row["advice"], retrying)
    return Class(name, meaning, kind, sub_type, row.get("suppress", False), row.get("retry_permanent", False))


def _table(table: Mapping[str, Any], classes: Mapping[str, Class]) -> Iterator[Rule]:
    for row in table["rules"]:
        given: dict[str, Any] = {name: tuple(row[name]) for name in ("codes", "enhanced", "stages", "samples") if name in row}
        yield Rule(
            **given,
            id=row["id"],
            digit=row.get("digit"),
            kind=classes[row["class"]],
            source=table["source"],
            hosts=tuple(table.get("hosts", ())),
            mark=_pattern(table.get("mark")),
            text=_pattern(row.get("text")),
            unless=_pattern(row.get("unless")),
            certain=row.get("certain", False),
        )


def _pattern(text: str | list[str] | None) -> re.Pattern[str] | None:
    """Compiles a pattern in lower case, for texts in lower case: that takes half the time of ignoring case."""
    if text is None:
        return None
    alternatives = text if isinstance(text, str) else "|".join(text)
    lowered = _CASE.sub(lambda found: found[0] if found[0][0] == "\\" else found[0].lower(), alternatives)
    return re.compile(lowered)
