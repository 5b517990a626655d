"""Octets to text by the name of a charset, as mail from anywhere gives it.

The names are a table: Python would look for a module of every name it is asked for, and remember each forever.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

_PIECE = 16_384  # octets decoded at once: text that is nearly all errors takes 10 MB a second

# The charsets that are read, by the names of Python's codecs: those of the IANA's registry that Python has, as far as mail uses them.
# Not among them: codecs that are no charsets of text, and UTF-7, in which text can be hidden from whoever looks for it.
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

# Names that Python does not know, or knows as a smaller charset than what is meant by them.
_ALSO = {
    "unicode-1-1-utf-8": "utf_8", "x-unicode20utf8": "utf_8", "utf8mb4": "utf_8",
    "iso-8859-8-i": "iso8859_8", "iso-8859-8-e": "iso8859_8", "iso-8859-6-i": "iso8859_6", "iso-8859-6-e": "iso8859_6",
    "x-sjis": "cp932", "x-ms-cp932": "cp932", "windows-31j": "cp932", "x-euc-jp": "euc_jp", "x-gbk": "gbk", "x-big5": "big5",
    "windows-874": "cp874", "windows-949": "cp949", "ks-c-5601-1987": "cp949", "dos-874": "cp874",
    "x-mac-roman": "mac_roman", "x-mac-cyrillic": "mac_cyrillic", "x-user-defined": "latin_1",
}  # fmt: skip

_LONGEST = 40  # characters of a name


def _names() -> Iterator[tuple[str, str]]:
    from encodings.aliases import aliases

    wanted = set(_CODECS)
    for codec in _CODECS:
        yield _plain(codec), codec
    for alias, codec in aliases.items():
        if codec in wanted:
            yield _plain(alias), codec
    for name, codec in _ALSO.items():
        yield _plain(name), codec


def _plain(name: str) -> str:
    """Names are told apart by their letters and digits alone, as people write them in all ways."""
    return "".join(character for character in name.lower() if character.isalnum())


_TABLE = dict(_names())


def codec_of(name: str) -> str | None:
    """The codec for a charset that mail names; None for one that is not in the table."""
    return _TABLE.get(_plain(name)) if len(name) <= _LONGEST else None


def decode(octets: bytes, charset: str) -> str:
    """`octets` as text; what does not decode becomes U+FFFD. An unknown charset is read as UTF-8, else Latin-1."""
    codec = codec_of(charset.strip() or "utf-8")
    if codec is None:
        return guess(octets)
    codec = "utf-8" if codec == "ascii" else codec
    if len(octets) <= _PIECE:
        return octets.decode(codec, "replace")
    decoder = codecs.getincrementaldecoder(codec)("replace")
    try:
        pieces = [decoder.decode(octets[at : at + _PIECE]) for at in range(0, len(octets), _PIECE)]
    except UnicodeError:  # UTF-16 or UTF-32 without its mark
        return octets.decode(codec, "replace")
    return "".join([*pieces, decoder.decode(b"", True)])


def guess(octets: bytes) -> str:
    """Text of which nobody said the charset: UTF-8 when it is, else Latin-1."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def not_utf8(octets: bytes) -> int | None:
    """Where the first octet is that is not UTF-8. In pieces, so that other threads get their turn."""
    at = 0
    while at < len(octets):
        try:
            at += codecs.utf_8_decode(octets[at : at + _PIECE], "strict", at + _PIECE >= len(octets))[1]
        except UnicodeDecodeError as wrong:
            return at + wrong.start
    return None
