"""Finds the regular expressions in the source, and generates texts from them on which they could be slow."""

from __future__ import annotations

import ast
import importlib
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import attrs

from mailsvc.bounces import diagnosis

DIAGNOSIS = "diagnosis.toml"
SOURCE = Path(diagnosis.__file__).parents[1]
FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_CALL = re.compile(rf"\bre\s*\.\s*(?:{'|'.join(FUNCTIONS)})\b")
MANY = 64  # a repeat that can be longer than this counts as unlimited
CHARACTERS = "a0 .-\"/@=:;,<>\\_?&%'()[]\n\r\té\ud7ff"


@attrs.frozen
class Regex:
    """A regular expression. `uses`: the methods called on it. If built at run time, `pattern` is None and `text` is the expression."""

    module: str
    text: str
    pattern: re.Pattern[Any] | None = attrs.field(eq=False)
    uses: frozenset[str] = attrs.field(eq=False)


def in_source() -> dict[tuple[str, str], Regex]:
    """Returns all regular expressions in modules and in diagnosis.toml, by module and text."""
    found = [regex for path in sorted(SOURCE.rglob("*.py")) for regex in _in_module(path)]
    found += [
        Regex(DIAGNOSIS, text.pattern, text, frozenset({"search"}))
        for rule in diagnosis.rules().rows
        for text in (rule.text, rule.unless)
        if text is not None
    ]
    doubt = diagnosis.rules().doubt
    found.append(Regex(DIAGNOSIS, doubt.pattern, doubt, frozenset({"search"})))
    merged: dict[tuple[str, str], Regex] = {}
    for regex in found:
        known = merged.get((regex.module, regex.text))
        uses = regex.uses | known.uses if known else regex.uses
        merged[regex.module, regex.text] = attrs.evolve(regex, uses=uses)
    return merged


def _in_module(path: Path) -> Iterator[Regex]:
    text = path.read_text("utf-8")
    if not _CALL.search(text):  # parsing takes much longer
        return
    tree = ast.parse(text)
    module = str(path.relative_to(SOURCE))
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    names = {id(node.value): target.id for node in assignments for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) == "re" and node.func.attr in FUNCTIONS:
            pattern = _evaluated(node, module)
            uses = frozenset({node.func.attr}) if node.func.attr != "compile" else _uses(tree, names.get(id(node)))
            yield Regex(module, _shown(pattern) if pattern else ast.unparse(node.args[0]), pattern, uses)


def _shown(pattern: re.Pattern[Any]) -> str:
    return pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else str(pattern.pattern)


def _evaluated(call: ast.Call, module: str) -> re.Pattern[Any] | None:
    """Evaluates a call with the names of its module. Returns None if it uses local names of a function."""
    name = ".".join(["mailsvc", *Path(module).with_suffix("").parts]).removesuffix(".__init__")
    flags = [word.value for word in call.keywords if word.arg == "flags"]
    place = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2}.get(getattr(call.func, "attr", ""), 9)
    flags += call.args[place : place + 1]
    scope = {**vars(importlib.import_module(name)), "re": re}
    try:
        values = [eval(compile(ast.Expression(node), module, "eval"), scope) for node in (call.args[0], *flags)]
    except NameError:
        return None
    return re.compile(*values)


def _uses(tree: ast.Module, name: str | None) -> frozenset[str]:
    """Returns the methods called on the pattern with this name. If none are found, assumes several."""
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }
    return frozenset(called & FUNCTIONS) or frozenset({"search", "match", "fullmatch"})


def places(pattern: re.Pattern[Any]) -> float:
    """The most places, for one beginning, at which its repeats can end; infinite if one has no bound."""
    return _places(parser.parse(pattern.pattern, pattern.flags))


def _places(items: Any) -> float:
    product = 1.0
    for kind, value in items:
        if kind is op.BRANCH:
            product *= max(_places(branch) for branch in value[1])
        elif kind in REPEATS:
            _, most, inner = value
            product *= (1 if most == 1 else float("inf") if most is op.MAXREPEAT else most + 1) * _places(inner)
        else:
            product *= prod(_places(inner) for inner in _inside(kind, value))
    return product


# --- bad texts -------------------------------------------------------------------------------------------------------


def attacks(pattern: re.Pattern[Any], size: int) -> Iterator[Any]:
    """Yields texts of about `size` characters: what a repeat matches, many times, with and without its prefix, and with a bad end."""
    seen: set[str] = set()
    tree = parser.parse(pattern.pattern, pattern.flags)
    for prefix, piece in _pumps(tree, "", "".join(dict.fromkeys([*_literals(tree), *CHARACTERS]))):
        for unit, begin in ((piece, prefix), (piece, ""), (prefix + piece, ""), (prefix, "")):
            for end in ("", "\0", "\n\0", piece[:1] + "!"):
                if unit and (key := f"{begin}\1{unit}\1{end}") not in seen:
                    seen.add(key)
                    text = begin + unit * max(1, size // len(unit)) + end
                    yield text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text


def _literals(items: Any) -> Iterator[str]:
    """Yields the punctuation in a pattern, which is likely to begin or end a match."""
    for kind, value in items:
        if kind is op.LITERAL and not chr(value).isalnum():
            yield chr(value)
        for inner in [value[2]] if kind in REPEATS else _inside(kind, value):
            yield from _literals(inner)


def _pumps(items: Any, prefix: str, alphabet: str) -> Iterator[tuple[str, str]]:
    """Yields, for each unlimited repeat, a text that matches what is before it and a text that matches one repetition."""
    for kind, value in items:
        if kind in REPEATS:
            _, most, inner = value
            if most is op.MAXREPEAT or most >= MANY:
                yield from ((prefix, piece) for piece in _samples(inner, alphabet))
            yield from _pumps(inner, prefix, alphabet)
        for inner in _inside(kind, value):
            yield from _pumps(inner, prefix, alphabet)
        prefix += _samples([(kind, value)], alphabet)[0]


def _inside(kind: Any, value: Any) -> list[Any]:
    if kind is op.SUBPATTERN:
        return [value[-1]]
    if kind is op.BRANCH:
        return list(value[1])
    if kind is op.ATOMIC_GROUP:
        return [value]
    return [value[1]] if kind in (op.ASSERT, op.ASSERT_NOT) else []


def _samples(items: Any, alphabet: str) -> list[str]:
    """Returns a few texts that match, or almost match."""
    texts = [""]
    for kind, value in items:
        texts = [text + more for text in texts for more in _choices(kind, value, alphabet)][:8] or texts
    return texts


def _choices(kind: Any, value: Any, alphabet: str) -> list[str]:
    if kind is op.LITERAL:
        return [chr(value)]
    if kind in (op.NOT_LITERAL, op.ANY, op.IN):
        matching = [character for character in alphabet if _matches(kind, value, character)]
        return matching[:4] or ["a"]
    if kind in REPEATS:
        least, most, inner = value
        return [text * max(least, 1 if most else 0) for text in _samples(inner, alphabet)]
    if kind is op.BRANCH:
        return [text for branch in value[1] for text in _samples(branch, alphabet)[:2]]
    return _samples(_inside(kind, value)[0], alphabet) if kind in (op.SUBPATTERN, op.ATOMIC_GROUP) else [""]


def _matches(kind: Any, value: Any, character: str) -> bool:
    if kind is op.ANY:
        return character != "\n"
    if kind is op.NOT_LITERAL:
        return ord(character) != int(value)
    negated = bool(value) and value[0][0] is op.NEGATE
    return negated != any(_in(one, each, character) for one, each in value if one is not op.NEGATE)


def _in(kind: Any, value: Any, character: str) -> bool:
    if kind is op.LITERAL:
        return ord(character) == int(value)
    if kind is op.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    letter, is_not = {
        op.CATEGORY_DIGIT: ("d", False), op.CATEGORY_NOT_DIGIT: ("d", True), op.CATEGORY_SPACE: ("s", False),
        op.CATEGORY_NOT_SPACE: ("s", True), op.CATEGORY_WORD: ("w", False), op.CATEGORY_NOT_WORD: ("w", True),
    }[value]  # fmt: skip
    return is_not != (re.match(rf"\{letter}", character) is not None)
