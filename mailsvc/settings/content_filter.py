"""The settings of the content filter. What it does: content_filter."""

from __future__ import annotations

import re

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


def _url(value: str) -> str | None:
    good = re.fullmatch(r"https?://[^/\s?#@]+", value)
    return None if good else 'expected a URL without a path, such as "http://127.0.0.1:11333"'


@attrs.frozen
class ContentFilter:
    """A content filter that sees each message before it is accepted: rspamd, or a program with the same HTTP protocol."""

    url: str | None = setting(
        None, "The URL of rspamd's normal worker. If not set, messages are not checked.", check=_url, example="http://127.0.0.1:11333"
    )
    seconds: float = setting(10.0, "Timeout in seconds for one message, including waiting.", check=checks.between(0.1, 120))
    concurrent: int = setting(10, "Messages that are checked at the same time. Others wait.", check=checks.between(1, 1000))
    size: int = setting(10 * 1024 * 1024, "Messages larger than this many bytes are accepted without a check.", check=checks.at_least(1024))
    when_unavailable: str = setting(
        "refuse", '"refuse": if it does not respond, clients are asked to send again later. "accept": mail is accepted without a check.',
        check=checks.one_of("refuse", "accept"),
    )  # fmt: skip
