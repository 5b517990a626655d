"""Decodes text by the name of a charset, as it appears in mail.

Names are looked up in a table. Python's own lookup would search for a module for each name, and cache each forever.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

_SLICE = 16_384  # bytes decoded at once: text with errors everywhere decodes at 10 MB per second

# The supported charsets, by the names of Python's codecs: those of the IANA registry that mail uses. Without codecs that are not
# charsets, and without UTF-7, which can hide text from filters.
_CODECS = """
ascii utf_8 utf_8_sig utf_16 utf_16_be utf_16_le utf_32 utf_32_be utf_32_le
latin_1 iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 iso8859_10 iso8859_11 iso8859_13 iso8859_14
iso8859_15 iso8859_16
cp037 cp273 cp424 cp437 cp500 cp737 cp775 cp850 cp852 cp855 cp857 cp858 cp860 cp861 cp862 cp863 cp864 cp865 cp866 cp869 cp874 cp1026
cp1125 cp1140 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258
koi8_r koi8_u kz1048 ptcp154 tis_620 hp_roman8 mac_roman mac_cyrillic mac_greek mac_latin2 mac_turkish
big5 big5hkscs cp950 gb2312 gbk gb18030 hz
shift_jis shift_jis_2004 shift_jisx0213 cp932 euc_jp euc_jis_2004 euc_jisx0213 iso2022_jp iso2022_jp_1 iso2022_jp_2 iso2022_jp_3
iso2022_jp_ext
euc_kr cp949 johab iso2022_kr
""".split()

# Names that Python does not know, or takes for a smaller charset than the one meant.
_ALIASES = {
    "unicode-1-1-utf-8": "utf_8", "x-unicode20utf8": "utf_8", "utf8mb4": "utf_8",
    "iso-8859-8-i": "iso8859_8", "iso-8859-8-e": "iso8859_8", "iso-8859-6-i": "iso8859_6", "iso-8859-6-e": "iso8859_6",
    "x-sjis": "cp932", "x-ms-cp932": "cp932", "windows-31j": "cp932", "x-euc-jp": "euc_jp", "x-gbk": "gbk", "x-big5": "big5",
    "windows-874": "cp874", "windows-949": "cp949", "ks-c-5601-1987": "cp949", "dos-874": "cp874",
    "x-mac-roman": "mac_roman", "x-mac-cyrillic": "mac_cyrillic", "x-user-defined": "latin_1",
}  # fmt: skip

# Charsets that mail often names although its text is in a larger one: each is decoded as the larger one, as browsers do
# (WHATWG Encoding, section 4.2).
_LARGER = {
    "latin_1": "cp1252", "iso8859_9": "cp1254", "iso8859_11": "cp874", "tis_620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "cp950", "euc_kr": "cp949", "shift_jis": "cp932", "iso2022_jp": "iso2022_jp_ext",
}  # fmt: skip

_MAX_NAME = 40  # characters
_JAPANESE = b"\x1b$"  # how ISO-2022-JP switches to Japanese


def _names() -> Iterator[tuple[str, str]]:
    from encodings.aliases import aliases

    wanted = set(_CODECS)
    for codec in _CODECS:
        yield _normalized(codec), codec
    for alias, codec in aliases.items():
        if codec in wanted:
            yield _normalized(alias), codec
    for name, codec in _ALIASES.items():
        yield _normalized(name), codec


def _normalized(name: str) -> str:
    """Keeps only letters and digits, because spellings vary."""
    return "".join(character for character in name.lower() if character.isalnum())


_TABLE = {name: _LARGER.get(codec, codec) for name, codec in _names()}


def codec_of(name: str) -> str | None:
    """Returns the codec for a charset, or None for an unknown one. A comment may follow (RFC 2045 §5.1)."""
    name = name.partition("(")[0]
    return _TABLE.get(_normalized(name)) if len(name) <= _MAX_NAME else None


def decode(data: bytes, charset: str) -> str:
    """Decodes text, with U+FFFD for errors. An unknown charset is decoded as UTF-8 if valid, otherwise Latin-1."""
    codec = codec_of(charset.strip() or "ascii")
    if codec is None:
        return guess(data)
    if codec == "ascii":
        codec = "iso2022_jp_ext" if _JAPANESE in data else "utf-8"
    if len(data) <= _SLICE:
        return data.decode(codec, "replace")
    decoder = codecs.getincrementaldecoder(codec)("replace")
    try:
        pieces = [decoder.decode(data[at : at + _SLICE]) for at in range(0, len(data), _SLICE)]
    except UnicodeError:  # UTF-16 or UTF-32 without a byte order mark
        return data.decode(codec, "replace")
    return "".join([*pieces, decoder.decode(b"", True)])


def guess(data: bytes) -> str:
    """Decodes text of unknown charset: as ISO-2022-JP if it switches to it, as UTF-8 if valid, otherwise as Latin-1."""
    if _JAPANESE in data and data.isascii():
        return decode(data, "iso-2022-jp")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def not_utf8(data: bytes) -> int | None:
    """Returns the position of the first byte that is not valid UTF-8. Works in slices, so that other threads can run."""
    at = 0
    while at < len(data):
        try:
            at += codecs.utf_8_decode(data[at : at + _SLICE], "strict", at + _SLICE >= len(data))[1]
        except UnicodeDecodeError as wrong:
            return at + wrong.start
    return None
