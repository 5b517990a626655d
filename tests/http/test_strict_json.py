"""One meaning per document, or an error that says where it is wrong."""

import json
import math
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.http import strict_json
from mailsvc.http.strict_json import Malformed
from tests.growth import assert_linear

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
names = st.text(max_size=8) | st.sampled_from(["content", "data", 'a":', ":", ' "', "\\", '\\"'])
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(names, v, max_size=4), max_leaves=20)


def lifted_back(value: Any) -> Any:
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list):
        return [lifted_back(child) for child in value]
    if isinstance(value, dict):
        return {name: lifted_back(child) for name, child in value.items()}
    return value


@settings(max_examples=200, deadline=None)
@given(values, st.booleans(), st.sampled_from([None, (",", ":"), (" , ", " : "), ("\n,", "\t:\r")]))
def test_valid_json_is_read(value: Any, ascii_only: bool, separators: tuple[str, str] | None) -> None:
    try:
        raw = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    except UnicodeEncodeError:
        return
    if any(0xD800 <= ord(c) <= 0xDFFF for c in json.dumps(value, ensure_ascii=False)):
        return
    assert strict_json.load(raw) == value
    assert lifted_back(strict_json.load_large(raw)) == value


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ aN1e-.u0d8', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_malformed(raw: bytes) -> None:
    for load in (strict_json.load, strict_json.load_large):
        try:
            value = load(raw)
        except Malformed as wrong:
            assert str(wrong)
            continue
        assert json.loads(raw.removeprefix(b"\xef\xbb\xbf")) == value or isinstance(value, float)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(names, scalars), min_size=1, max_size=5), st.sampled_from([",", " ,\n"]), st.sampled_from([":", " :", ' : "x" :'])
)
def test_duplicate_name_is_found(pairs: list[tuple[str, Any]], comma: str, colon: str) -> None:
    colon = colon if colon != ' : "x" :' else ":"
    members = comma.join(json.dumps(name) + colon + json.dumps(value) for name, value in pairs)
    raw = ('{"x":[{' + members + "}]}").encode()
    if len({name for name, _ in pairs}) == len(pairs):
        assert strict_json.load(raw) == {"x": [dict(pairs)]}
    else:
        with pytest.raises(Malformed, match="twice"):
            strict_json.load(raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "empty"),
        (b"{", "line 1, column 2"),
        (b'{"a":1,"a":2}', "`a` twice"),
        (b'{"a":"x:y","b":{"c":1,"c":1}}', "`c` twice"),
        (b'{"subject":NaN}', "`subject`"),
        (b'{"tags":[{"value":%s}]}' % (b"9" * 400), "`tags[0].value`"),
        (b'{"tags":[{"value":%s}]}' % (b"9" * 5000), "`tags[0].value`"),
        (b'{"tags":[{"value":-Infinity}]}', "`tags[0].value`"),
        (b'{"a":1e999}', "`a`"),
        (b'{"headers":{"X":"\\ud800"}}', "`headers.X`"),
        (b'{"to":["a","\\udc00\\ud800"]}', "`to[1]`"),
        (b'{"\\ud800":1}', "request body"),
        (b'{"html":"a\x01"}', "`html`"),
        (b'{"html":"\xff"}', "not valid JSON"),
        (b"[" * 65 + b"]" * 65, "64 levels"),
        (b"[" * 5000 + b"]" * 5000, "not valid JSON"),
        (b'{"a":1}{"a":1}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
    ],
)
def test_error_names_the_field(raw: bytes, expected: str) -> None:
    for load in (strict_json.load, strict_json.load_large):
        with pytest.raises(Malformed) as wrong:
            load(raw)
        assert expected in str(wrong.value)


def test_byte_order_mark_is_ignored() -> None:
    assert strict_json.load(b"\xef\xbb\xbf{}") == {}


content = bytes(range(256)) * 1000


@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : "), (",\n ", ":")])
def test_byte_arrays_of_a_large_document_become_bytes(separators: tuple[str, str]) -> None:
    document = {
        "attachments": [{"content": list(content)}, {"content": {"type": "Buffer", "data": list(content)}}],
        "html": '"content":[1]',
    }
    value = strict_json.load_large(json.dumps(document, separators=separators).encode())
    assert value["attachments"] == [{"content": content}, {"content": {"type": "Buffer", "data": content}}]
    assert value["html"] == document["html"]


@pytest.mark.parametrize("bad", [256, -1, 1.5, True, None, "1", [1]])
def test_other_arrays_stay_lists(bad: Any) -> None:
    numbers = [*content[:200], bad, *content[:200]]
    assert strict_json.load_large(json.dumps({"content": numbers}).encode()) == {"content": numbers}


@pytest.mark.parametrize("wrong", [b"1,,2", b"1 2", b"01", b"+1", b"1_0", b"1,"])
def test_byte_array_must_be_valid_json(wrong: bytes) -> None:
    with pytest.raises(Malformed):
        strict_json.load_large(b'{"content":[' + b"1," * 100 + wrong + b"]}")


def test_string_that_looks_like_a_byte_array_stays_a_string() -> None:
    text = '"content":[' + "1," * 200 + "1]"
    assert strict_json.load_large(json.dumps({"html": text, "content": text}).encode()) == {"html": text, "content": text}


def test_name_that_only_ends_like_content_is_ignored() -> None:
    document = {'a"content': [1] * 200, "content": [1] * 200}
    assert strict_json.load_large(json.dumps(document).encode()) == {**document, "content": b"\1" * 200}


def test_document_with_too_many_values_is_refused() -> None:
    many = b"[" + b"[]," * (strict_json.NODES_MAX // 2) + b"[]]"
    with pytest.raises(Malformed, match="values"):
        strict_json.load_large(many)
    assert strict_json.load_large(b'"' + b"[]," * (strict_json.NODES_MAX // 2) + b'"')


def test_numbers_stay_numbers() -> None:
    assert math.isclose(strict_json.load(b"1.5e3"), 1500)


# Hostile documents

HOSTILE = {
    "separators in a string": (b'{"text":"', b"a,", b'"}'),
    "colons in a string": (b'{"text":"', b"a:", b'"}'),
    "escaped names in a string": (b'{"text":"', b'\\":', b'"}'),
    "a field twice": (b'{"a":1,"a":2,"text":"', b"a:", b'"}'),
    "NaN": (b'{"a":NaN,"text":"', b"a:", b'"}'),
    "a control character": (b'{"text":"', b"a", b'\x01"}'),
    "lone surrogates": (b'{"text":"', b"\\ud800", b'"}'),
    "not UTF-8": (b'{"text":"', b"a", b'\xff"}'),
    "unterminated escapes": (b'"', b"\\\\", b""),
    "unterminated byte arrays": (b"{", b'"content":[', b"}"),
    "short byte arrays": (b"{", b'"content":[],', b'"a":1}'),
    "a byte array": (b'{"content":[', b"255,", b"1]}"),
    "no byte array after all": (b'{"content":[', b"255,", b"256]}"),
    "space": (b'{"content"', b" ", b"}"),
    "tiny values": (b"[", b"[],", b"[]]"),
    "empty strings": (b"[", b'"",', b'""]'),
    "deep arrays": (b"", b"[", b""),
    "deep objects": (b"", b'{"a":', b""),
    "wide characters": (b'{"text":"', ("a" * 99 + "😀").encode(), b'"}'),
}


def hostile(name: str, size: int) -> bytes:
    begin, unit, end = HOSTILE[name]
    return begin + unit * (size // len(unit)) + end


def read(raw: bytes) -> Any:
    try:
        return strict_json.load_large(raw)
    except Malformed as wrong:
        return str(wrong)


@pytest.mark.parametrize("name", HOSTILE)
def test_parsing_takes_linear_time(name: str) -> None:
    assert_linear(lambda size: hostile(name, size), read, 100_000)


@pytest.mark.parametrize("name", HOSTILE)
def test_parsing_takes_memory_near_the_size(name: str) -> None:
    raw = hostile(name, 4_000_000)
    tracemalloc.start()
    try:
        read(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(raw)  # orjson reserves twelve times the size, and uses twice of it


@pytest.mark.parametrize("name", ["a field twice", "NaN", "a control character"])
def test_wrong_field_is_named_in_a_large_document(name: str) -> None:
    assert {"a field twice": "`a` twice", "NaN": "`a`", "a control character": "`text`"}[name] in read(hostile(name, 4_000_000))


def test_duplicate_name_is_refused_if_it_cannot_be_named() -> None:
    with pytest.raises(Malformed, match="twice"):
        strict_json.load_large(b'{"a":1,"a":2,"text":"' + b"\\u0001:" * 100_000 + b'"}')


def test_invalid_utf8_is_located() -> None:
    for before in (b"", b" " * 200_000 + "\n€".encode() * 3):
        line = before.count(b"\n") + 1
        with pytest.raises(Malformed, match=f"line {line}, byte"):
            strict_json.load_large(before + b'"\xff"')
    with pytest.raises(Malformed, match="line 2, byte 4"):
        strict_json.load(b'{"a":\n" \n\xe9"}'.replace(b" \n", b"ab"))


def test_text_that_takes_a_multiple_of_its_size_is_refused() -> None:
    with pytest.raises(Malformed, match="Latin-1"):
        strict_json.load_large(b'{"html":"' + b"a" * (17 << 20) + "😀".encode() + b'"}')
    chinese = '{"html":"' + "漢" * (5 << 20) + '"}'
    assert strict_json.load_large(chinese.encode()) == json.loads(chinese)
    attached = b'{"html":"' + "😀".encode() + b'","attachments":[{"content":"' + b"QUJD" * (5 << 20) + b'"}]}'
    assert strict_json.load_large(attached)["html"] == "😀"


@settings(max_examples=200, deadline=None)
@given(values, st.booleans(), st.integers(1, 9))
def test_separators_are_counted_wherever_the_text_is_cut(value: Any, ascii_only: bool, size: int) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", raw)
    assert b"".join(b"".join(parts[inside::2]) for _, parts, inside in strict_json._pieces(raw, size)) == bare


def test_many_values_are_not_read_in_the_reactor_thread() -> None:
    assert strict_json.light(json.dumps({"to": ["a@b.example"] * 1000}).encode())
    assert not strict_json.light(b"[" + b"[]," * strict_json.LIGHT + b"[]]")


@pytest.mark.parametrize("window", range(1, 12))
def test_byte_arrays_are_found_across_the_windows_of_a_search(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(strict_json, "WINDOW", window)
    document = {"a": "x" * 20, "content": [1] * 70, "b": [{"data": [2] * 70}], "c": '"content": ['}
    assert strict_json.load_large(json.dumps(document).encode()) == document | {"content": b"\1" * 70, "b": [{"data": b"\2" * 70}]}
