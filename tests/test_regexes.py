"""Every regular expression in the source is listed in regexes.toml after review, and none is slow on hostile text.

A new one fails here until it is in the list: `text` says whose text it is used on, `why` why it takes linear time. Those of the rules in
diagnosis.toml need no entry: a test checks that each repeats within bounds.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from tests.regexes import DIAGNOSIS, Regex, attacks, in_source, places

REVIEWED = {
    (row["module"], row["pattern"]): row for row in tomllib.loads((Path(__file__).with_name("regexes.toml")).read_text("utf-8"))["regex"]
}
FOUND = in_source()
STRANGERS = [regex for key, regex in FOUND.items() if REVIEWED.get(key, {}).get("text") != "own" and regex.pattern is not None]
LENGTH = 2000  # characters of the shortest text
STEP = 4
PLACES = 2000  # at which the repeats of a rule of the diagnosis can end
QUICK = 0.004  # seconds, below which growth is not looked at
SLACK = 2.5
_POSSESSIVE_GROUP = r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\})\+"


def test_every_regular_expression_has_been_reviewed() -> None:
    new = sorted(key for key in FOUND.keys() - REVIEWED.keys() if key[0] != DIAGNOSIS)
    assert new == [], "review these, and add them to tests/regexes.toml"
    assert sorted(REVIEWED.keys() - FOUND.keys()) == [], "these are in tests/regexes.toml and in the source no more"
    assert [key for key, row in REVIEWED.items() if row["text"] not in ("strangers", "own") or not row["why"]] == []


@pytest.mark.parametrize("regex", [regex for regex in FOUND.values() if regex.module == DIAGNOSIS], ids=lambda regex: regex.text[:30])
def test_the_rules_of_the_diagnosis_repeat_within_bounds(regex: Regex) -> None:
    """They need no review: a reply has at most 2,000 characters, so this bounds the work of a rule."""
    assert regex.pattern is not None
    assert places(regex.pattern) <= PLACES, "use bounded repeats such as `.{0,40}`, and few of them"


def test_groups_are_made_possessive_by_an_atomic_group() -> None:
    """`(?>(?:…)*)` and not `(?:…)*+`: it means the same in every release of Python 3.11."""
    found = [key for key, regex in FOUND.items() if regex.pattern is not None and re.search(_POSSESSIVE_GROUP, str(regex.pattern.pattern))]
    assert found == []


def test_no_module_hides_a_regular_expression() -> None:
    """`re` goes by its name, so that all uses of it are found."""
    from tests.regexes import SOURCE

    hidden = re.compile(r"^\s*(from re import|import re as|from regex|import regex|from sre)", re.MULTILINE)
    assert [path for path in SOURCE.rglob("*.py") if hidden.search(path.read_text("utf-8"))] == []


def _seconds(pattern: re.Pattern[Any], use: str, text: Any) -> float:
    begin = process_time()
    if use in ("sub", "subn"):
        pattern.sub(b"" if isinstance(text, bytes) else "", text)
    elif use in ("findall", "finditer", "split"):
        pattern.findall(text)
    else:
        getattr(pattern, use)(text)
    return process_time() - begin


def slow(regex: Regex, most: int | None = None) -> str | None:
    """The text over which its time grows faster than its length does; of texts with at most so many characters."""
    assert regex.pattern is not None
    sizes = [LENGTH, LENGTH * STEP, LENGTH * STEP**2] if most is None else [most]
    for use in sorted(regex.uses):
        for number, texts in enumerate(zip(*(attacks(regex.pattern, size) for size in sizes), strict=True)):
            before = 0.0
            for text in texts:
                taken = _seconds(regex.pattern, use, text)
                if taken > QUICK and taken > (STEP * SLACK * before if before > QUICK else QUICK * STEP * SLACK):
                    taken = min(_seconds(regex.pattern, use, text) for _ in range(2))
                if taken > QUICK and taken > (STEP * SLACK * before if before > QUICK else QUICK * STEP * SLACK):
                    return f"{use} of {text[:60]!r}… ({number}): {len(text)} characters take {taken:.3f} s"
                before = taken
    return None


@pytest.mark.parametrize("regex", STRANGERS, ids=lambda regex: f"{regex.module}-{regex.text[:30]}")
def test_hostile_text_takes_linear_time(regex: Regex) -> None:
    assert slow(regex, REVIEWED.get((regex.module, regex.text), {}).get("most")) is None


@pytest.mark.parametrize(
    "text",
    [r"(a+)+$", r"\s+$", r"<head[^>]*>", r"[^/]*[@%][^/]*", r"\b[a-z][a-z0-9+.-]*://", r'"(?:[^"\\]|\\.)*"', r"(a|a)*b", r"[,;]\s*[^@]+@",
     r"\b(?:[a-z0-9-]+\.)+(?:com|net)\b"],
)  # fmt: skip
def test_a_slow_expression_is_detected(text: str) -> None:
    short = Regex("", text, re.compile(text), frozenset({"search"}))
    if text in (r"(a+)+$", r"(a|a)*b"):  # twice as long for each character
        assert slow(short, 21) is not None
    else:
        assert slow(short) is not None
