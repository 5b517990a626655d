"""Measures how well returned mail is understood, on a folder of real bounces: `make bounces BOUNCES=folder`. Nothing is sent or stored.

The folder has `mails/` and `expected.tsv`, whose columns are: file, recipient_no, recipient, reason, hard, status, reply, same_class,
near_class, damaged. `reason` is the word of the program that made the table; `hard` is 1 if the address is invalid for good.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs

from mailsvc.bounces import reading
from mailsvc.bounces.reading import ReportMail
from mailsvc.outcome import Bounced

DELAYED = re.compile(
    rb"^Action: *delay|WARNING MESSAGE ONLY|only a temporary failure|has not yet been delivered", re.MULTILINE | re.IGNORECASE
)  # not final
NOT_FAILURES = frozenset({"", "feedback", "vacation", "delivered", "onhold"})  # reasons that do not end a delivery, or not by a failure
DISPUTED = frozenset({"filtered", "suspend"})  # programs disagree on whether these suppress an address
WORST = 40  # misses that are listed


@attrs.frozen
class Expected:
    """A line of expected.tsv."""

    file: str
    recipient: str
    reason: str
    hard: bool
    status: str
    same: frozenset[str]
    near: frozenset[str]
    damaged: bool
    final: bool = True

    @property
    def failure(self) -> bool:
        return self.final and self.reason not in NOT_FAILURES


@attrs.frozen
class Found:
    """What mailsvc reads for one expected recipient. `named`: the mail names this very address."""

    expected: Expected
    kind: str
    named: bool = False
    status: str = ""
    outcome: Bounced | None = None

    @property
    def reason(self) -> str:
        return self.outcome.meaning.kind if self.outcome and self.outcome.meaning else "-"

    @property
    def suppressed(self) -> bool:
        return self.outcome is not None and self.outcome.suppress


def expectations(folder: Path) -> Iterator[list[Expected]]:
    """The lines of each file."""
    by_file: dict[str, list[Expected]] = {}
    with (folder / "expected.tsv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            by_file.setdefault(row["file"], []).append(
                Expected(
                    row["file"],
                    row["recipient"],
                    row["reason"],
                    row["hard"] == "1",
                    row["status"],
                    frozenset(row["same_class"].split()),
                    frozenset(row["near_class"].split()),
                    row["damaged"] == "1",
                )
            )
    yield from by_file.values()


def examine(message: bytes, expected: list[Expected]) -> list[Found]:
    """Reads a mail as if it answered an email to these recipients."""
    if DELAYED.search(message):
        expected = [attrs.evolve(each, final=False) for each in expected]
    mail = reading.read(message)
    addresses = [each.recipient for each in expected]
    outcomes = {report.recipient: report.outcome for report in mail.reports(addresses)}
    return [_found(each, mail, outcomes.get(number)) for number, each in enumerate(expected)]


def _found(expected: Expected, mail: ReportMail, outcome: object) -> Found:
    name = expected.recipient.lower()
    reported = [each for each in (*mail.failed, *mail.others) if name in (each.final.lower(), each.original.lower())]
    status = reported[0].status if reported else ""
    return Found(expected, mail.kind, bool(reported), status, outcome if isinstance(outcome, Bounced) else None)


def summary(found: list[Found]) -> Iterator[str]:
    """The figures as lines. The share of reasons and actions is that of all failures, whether recognised or not."""
    failures = [each for each in found if each.expected.failure and not each.expected.damaged]
    yield f"{len(found)} recipients, {len(failures)} undamaged final failures"
    yield _share("recognised", [each.kind == "bounce" and each.outcome is not None for each in failures])
    yield _share("recipient named", [each.named for each in failures])
    yield _share("same status", [each.status == each.expected.status for each in failures if each.expected.status])
    yield _share("same class", [each.reason in each.expected.same for each in failures])
    yield _share("same or near class", [each.reason in each.expected.same | each.expected.near for each in failures])
    judged = [each for each in failures if each.expected.reason not in DISPUTED]
    yield _share("same action", [each.suppressed == each.expected.hard for each in judged])
    live = [each for each in found if each.suppressed and not each.expected.hard and each.expected.reason not in DISPUTED]
    yield f"live addresses suppressed: {len(live)}"
    complaints = [each for each in found if each.expected.reason == "feedback"]
    yield _share("complaints recognised", [each.kind in ("complaint", "feedback") for each in complaints])
    others = [each for each in found if not each.expected.failure and each.expected.reason != "feedback"]
    yield _share("left alone that is not a failure", [each.outcome is None for each in others])


def _share(name: str, results: list[bool]) -> str:
    return f"{name}: {sum(results)} of {len(results)} ({100 * sum(results) / (len(results) or 1):.1f} %)"


def badness(each: Found) -> int:
    """How bad a miss is: a live address suppressed, then not recognised, then a wrong action, then a wrong class; 0 is no miss."""
    expected = each.expected
    if not expected.failure:
        wanted = ("complaint", "feedback") if expected.reason == "feedback" else ()
        return 5 if each.suppressed else 3 if each.outcome or (wanted and each.kind not in wanted) else 0
    if each.suppressed and not expected.hard and expected.reason not in DISPUTED:
        return 5
    if each.outcome is None:
        return 4
    if each.suppressed != expected.hard and expected.reason not in DISPUTED:
        return 3
    return 0 if each.reason in expected.same else 1 if each.reason in expected.near else 2


def miss(each: Found) -> str:
    expected = each.expected
    rule, reply = "-", "-"
    if each.outcome is not None and each.outcome.meaning is not None:
        rule, reply = each.outcome.meaning.rule, each.outcome.reply
    wanted = f"{expected.reason} ({'|'.join(sorted(expected.same))}), {_act(expected.hard)}{', damaged' if expected.damaged else ''}"
    head = f"{badness(each)} {expected.file} {expected.recipient}"
    return f"{head}: {each.kind}, {each.reason} ({rule}), {_act(each.suppressed)}; expected {wanted}: {reply[:200]}"


def _act(suppressed: bool) -> str:
    return "suppressed" if suppressed else "kept"


def main(arguments: list[str]) -> None:
    if not arguments or not arguments[0]:
        print("Skipped: name a folder of bounces, as in `make bounces BOUNCES=folder`.")
        return
    folder = Path(arguments[0])
    found: list[Found] = []
    for expected in expectations(folder):
        message = (folder / "mails" / expected[0].file).read_bytes()
        found += examine(message.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), expected)
    print(*summary(found), sep="\n")
    if "--summary" in arguments:
        return
    misses = sorted((each for each in found if badness(each)), key=badness, reverse=True)
    print(f"{len(misses)} misses: {dict(sorted(Counter(map(badness, misses)).items(), reverse=True))}; the worst:")
    print(*map(miss, misses if "--all" in arguments else misses[:WORST]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
