"""Decoding text by the name of a charset."""

from __future__ import annotations

import codecs
import sys

import pytest

from mailsvc.mail import charset, encoded_word
from tests.growth import assert_linear


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("utf-8", "Grüße"), ("UTF8", "Grüße"), ("iso-8859-1", "Grüße"), ("ISO_8859-15", "10 €"), ("latin1", "é"), ("windows-1252", "“x”"),
        ("cp1252", "“x”"), ("us-ascii", "x"), ("ANSI_X3.4-1968", "x"), ("koi8-r", "привет"), ("windows-1251", "привет"), ("gb2312", "你好"),
        ("gbk", "你好"), ("GB18030", "你好"), ("big5", "你好"), ("shift_jis", "日本"), ("iso-2022-jp", "日本"), ("euc-jp", "日本"),
        ("euc-kr", "한국"), ("ks_c_5601-1987", "한국"), ("tis-620", "ไทย"), ("iso-8859-8-i", "שלום"),
        ("utf-16le", "x"), (" utf-8 ", "é"), ("", "é"),
    ],
)  # fmt: skip
def test_charsets_of_mail_are_decoded(name: str, text: str) -> None:
    codec = charset.codec_of(name.strip() or "utf-8")
    assert codec is not None
    assert charset.decode(text.encode(codec), name) == text


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("iso-8859-1", b"\x93x\x94 \x80 5 \x96", "“x” € 5 –"),
        ("iso-8859-9", b"\x93\xfe", "“ş"),
        ("tis-620", b"\x80\xa1", "€ก"),
        ("gb2312", "朱镕基 €".encode("gb18030"), "朱镕基 €"),
        ("big5", "裏 碁".encode("cp950"), "裏 碁"),
        ("euc-kr", "똠방각하".encode("cp949"), "똠방각하"),
        ("shift_jis", "①髙橋".encode("cp932"), "①髙橋"),
        ("iso-2022-jp", b"\x1b(I6E\x1b(B \x1b$BF|\x1b(B", "ｶﾅ 日"),
        ("", b"\x1b$BF|\x1b(I6E\x1b(B", "日ｶﾅ"),
    ],
)
def test_text_in_a_larger_charset_than_the_one_named_is_decoded(name: str, data: bytes, text: str) -> None:
    assert charset.decode(data, name) == text


@pytest.mark.parametrize("codec", sorted(set(charset._TABLE.values())))
def test_every_codec_exists_and_decodes_any_bytes(codec: str) -> None:
    assert isinstance(charset.decode(bytes(range(256)) * 200, codec), str)


@pytest.mark.parametrize(
    "name", ["idna", "punycode", "unicode-escape", "utf-7", "rot13", "hex", "zlib", "mbcs", "undefined", "../../x", "é" * 999]
)
def test_unknown_charsets_are_guessed(name: str) -> None:
    assert charset.decode("Grüße".encode(), name) == "Grüße"
    assert charset.decode(b"Gr\xfc\xdfe", name) == "Grüße"


def test_unknown_names_are_not_looked_up_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    codecs.register(lambda name: names.append(name))
    known = set(sys.modules)
    for number in range(1000):
        charset.decode(b"x", f"x-mailsvc-{number}")
    encoded_word.decode("".join(f"=?x-mailsvc-word-{number}?q?a?= " for number in range(1000)))
    assert [name for name in names if "mailsvc" in name] == []
    assert {name for name in sys.modules if "mailsvc_" in name} <= known


def test_text_is_decoded_in_slices_like_a_whole() -> None:
    text = "日本語 と é " * 10_000
    for codec in ("utf-8", "utf-16", "gb18030", "iso-2022-jp-2"):
        assert charset.decode(text.encode(codec), codec) == text
    data = "é".encode() * 20_000 + b"\xff" + b"a" * 50_000
    assert charset.decode(data, "utf-8") == data.decode("utf-8", "replace")


def test_encoded_words_beyond_the_limit_are_not_decoded() -> None:
    word = "=?utf-8?q?a?="
    assert encoded_word.decode(f"{word} " * encoded_word.WORDS_MAX).strip() == "a" * encoded_word.WORDS_MAX
    assert encoded_word.decode(f"{word} " * (encoded_word.WORDS_MAX + 5)).endswith(f"{word} ")


@pytest.mark.parametrize("unit", ["=?utf-8?q?a?= ", "=?utf-8?q?a?=x", "=?a?q?b?=", "=?a?q?"])
def test_decoding_takes_linear_time(unit: str) -> None:
    assert_linear(lambda size: unit * (size // len(unit)), encoded_word.decode, 4000)
