"""What a reply means: what is wrong, who must act, and a sentence of advice. Pure; the rules are data, in diagnosis.toml.

What to do about it (settle, try again) is delivery/classify for a reply, and returns/ for a report that comes later.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.outcome import BounceType, Meaning

# What the reply answers. "ours": we spoke for the server; "report": it stands in a report, and nobody says what it answered.
Stage = Literal["greeting", "mail", "rcpt", "data", "dot", "ours", "report"]

_LONGEST = 2000  # characters of a reply that are looked at
_ADDRESS = re.compile(r"<?[^\s<>@]{1,64}@[^\s<>@]{1,255}>?")  # says nothing: it may be spam@full.example


@attrs.frozen
class Class:
    """A kind of trouble. `suppress`: its 5yz speaks against the address itself. `again`: its 5yz does not speak of this mail at all."""

    name: str
    meaning: Meaning
    type: BounceType
    sub_type: str
    suppress: bool = False
    again: bool = False


@attrs.frozen
class Rule:
    """A row of diagnosis.toml. Whatever is empty matches anything; `hosts` are the ends of the names of exchangers."""

    id: str
    kind: Class
    source: str
    hosts: tuple[str, ...] = ()
    digit: int | None = None
    codes: tuple[int, ...] = ()
    enhanced: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    stages: tuple[Stage, ...] = ()
    samples: tuple[str, ...] = ()

    def matches(self, seen: Seen) -> bool:
        if self.hosts and not seen.host.endswith(self.hosts):
            return False
        if (self.digit is not None and seen.code // 100 != self.digit) or (self.codes and seen.code not in self.codes):
            return False
        if (self.stages and seen.stage not in self.stages) or (self.enhanced and not self._about(seen.subject)):
            return False
        if self.text is not None and not self.text.search(seen.text):
            return False
        return self.unless is None or not self.unless.search(seen.text)

    def _about(self, subject: str) -> bool:
        return any(subject.startswith(each) if each.endswith(".") else subject == each for each in self.enhanced)


@attrs.frozen
class Seen:
    """A reply as the rules look at it. `subject`: its enhanced code without the first digit; `host`: with a dot in front."""

    code: int
    subject: str
    text: str
    host: str
    stage: Stage


@attrs.frozen
class Diagnosis:
    """What was found. `suppress` and `again` are already the reply's own: its class may suppress, a 4yz never does."""

    meaning: Meaning
    type: BounceType
    sub_type: str
    suppress: bool
    again: bool


@attrs.frozen
class Rules:
    """All of them, in the order in which they are asked."""

    classes: Mapping[str, Class]
    rows: tuple[Rule, ...]


def diagnose(reply: Reply, host: str, stage: Stage) -> Diagnosis:
    """What `reply` of the exchanger `host` means. Of replies that are no refusal nothing is known."""
    text = _ADDRESS.sub("<@>", " ".join(str(reply)[:_LONGEST].split()))
    seen = Seen(reply.code, (reply.enhanced or "").partition(".")[2], text, "." + host.lower().rstrip("."), stage)
    found = next((rule for rule in rules().rows if rule.matches(seen)), None)
    kind = found.kind if found is not None else rules().classes["undetermined"]
    meaning = attrs.evolve(kind.meaning, rule=found.id if found is not None else "none")
    return Diagnosis(meaning, kind.type, kind.sub_type, kind.suppress and reply.permanent, kind.again and reply.permanent)


def known(name: str, *, retried: bool = False) -> Meaning | None:
    """The meaning of a class, whichever rule led to it; None for a name that there is no more. `retried`: the email is tried again."""
    found = rules().classes.get(name)
    if found is None:
        return None
    return found.meaning.while_retried() if retried else found.meaning


@cache
def rules() -> Rules:
    """Read once. What is wrong in the file is an error of the program."""
    data = tomllib.loads((resources.files("mailsvc.bounces") / "diagnosis.toml").read_text("utf-8"))
    classes = {name: _class(name, row) for name, row in data["class"].items()}
    tables = [*data["provider"].values(), data["text"], data["enhanced"], data["basic"]]
    return Rules(classes, tuple(rule for table in tables for rule in _table(table, classes)))


def _class(name: str, row: Mapping[str, Any]) -> Class:
    kind, sub_type = row["bounce"]
    meaning = Meaning(name, "class", row["party"], row["says"], row["advice"], row.get("retrying", ""))
    return Class(name, meaning, kind, sub_type, row.get("suppress", False), row.get("again", False))


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
            text=_pattern(row.get("text")),
            unless=_pattern(row.get("unless")),
        )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text, re.IGNORECASE)
