"""One word for one thing: docs/glossary.md has the words, and the ones that they replaced do not come back."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/glossary.md"

# Retired name → the word to use. Matched as a whole part of an identifier (`own_mail`, `OwnMail`, `self.mail.own_mail_sent`) and of a text.
RETIRED = {
    "cargo": "message loader",
    "courier": "SMTP connection or client",
    "crowd": "connection limits",
    "desk": "page context",
    "door": "listener",
    "doors": "listeners",
    "fate": "recipient",
    "fence": "write guard",
    "freight": "memory budget",
    "knock": "connect",
    "own mail": "system mail",
    "purse": "budget",
    "shelf": "sandbox mail or cache",
    "tally": "counts",
    "visit": "page request or session",
    "weary": "idle",
    "whereabouts": "restore guard",
    "yard": "lane context",
}

# Names of variables, functions and classes that say too little. In a text, each of them is a word like others.
NAMES = {
    "books": "ledger",
    "heard": "received",
    "house": "store",
    "octets": "data, size",
    "stranger": "outsider, another account, unauthenticated client",
    "told": "reply, response, outcome",
    "world": "rig",
}

# Retired phrases, in everything that people read.
PHRASES = (
    "mended",
    "put off",
    "what became of",
    "look into your inbox",
    "counts anew",
    "the way out",
    "word back",
    "all is well",
    "by itself",
    "what becomes of",
    "anew",
    "of ours",
)

# History keeps its words: landed migrations, and what modules were called before they moved. One is a program's name: Rust's cargo.
HISTORY = ("mailsvc/store/migrations/", "docs/decisions/module-paths.md", "CHANGELOG.md")
KEPT = (*HISTORY, "tests/documentation/programs.py", "tests/test_words.py")
KINDS = ("*.py", "*.md", "*.toml", "*.html", "*.txt", "*.yml", "*.js", "*.css", "*.cfg", "*.service", "*.socket")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _paths() -> Iterator[Path]:
    for folder in ("mailsvc", "tests", "docs", "etc", "twisted"):
        for kind in KINDS:
            yield from sorted((ROOT / folder).rglob(kind))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"))


def _plain(text: str) -> list[str]:
    """Its lines in lower case, with identifiers taken apart into their words."""
    return _CAMEL.sub(" ", text).replace("_", " ").lower().splitlines()


@cache
def _texts() -> dict[str, list[str]]:
    named = {path.relative_to(ROOT).as_posix(): path for path in _paths() if not path.is_symlink()}
    return {name: _plain(path.read_text()) for name, path in named.items() if not name.startswith(KEPT) and "/packages/" not in name}


def found(words: str, lines: list[str]) -> list[int]:
    """The numbers of the lines that have these words, whether as a text or as parts of an identifier."""
    pattern = re.compile(rf"(?<![a-z]){re.escape(words)}(?![a-z])")
    return [number for number, line in enumerate(lines, 1) if words in line and pattern.search(line)]


@pytest.mark.parametrize("words", [*RETIRED, *PHRASES])
def test_retired_words_do_not_come_back(words: str) -> None:
    places = [f"{name}:{number}" for name, lines in _texts().items() for number in found(words, lines)]
    assert not places, f"say {RETIRED.get(words, 'it in plain words')}: {', '.join(places[:10])}"


def _names(text: str) -> set[str]:
    return {token.string.lower() for token in tokenize.generate_tokens(StringIO(text).readline) if token.type == tokenize.NAME}


def test_names_say_what_they_mean() -> None:
    texts = {path: path.read_text() for path in _paths() if path.suffix == ".py"}
    likely = {path: text for path, text in texts.items() if any(name in text.lower() for name in NAMES)}
    places = [f"{path}: {name}, say {NAMES[name]}" for path, text in likely.items() for name in _names(text) & {*NAMES}]
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    ("text", "lines"),
    [("class OwnMail:", [1]), ("x\nself.own_mail = 1", [2]), ("our own mail goes", [1]), ("down mailbox", []), ("own mailing", [])],
)
def test_words_are_found_in_names_and_texts(text: str, lines: list[int]) -> None:
    assert found("own mail", _plain(text)) == lines


def test_the_glossary_explains_each_word_once_and_in_order() -> None:
    words = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", GLOSSARY.read_text(), re.MULTILINE)[1:]
    assert words == sorted(set(words), key=str.lower)
    assert len(words) >= 50
