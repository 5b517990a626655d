"""Which opens and clicks count as made by programs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mailsvc.mail.tracking.machine import REASONS, Circumstances, machine

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36"
GMAIL = "Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)"
YAHOO = "YahooMailProxy; https://help.yahoo.com/kb/yahoo-mail-proxy-SLN28749.html"
PHONE = "Mozilla/5.0 (Linux; Android 13; CUBOT X70) AppleWebKit/537.36 Chrome/140.0.0.0 Mobile Safari/537.36"
OPEN, CLICK = Circumstances(False, "GET", CHROME), Circumstances(True, "GET", CHROME)


@pytest.mark.parametrize(
    ("seen", "changes", "code"),
    [
        (OPEN, {}, None),
        (OPEN, {"agent": GMAIL}, None),
        (OPEN, {"agent": YAHOO}, None),
        (OPEN, {"agent": PHONE}, None),
        (OPEN, {"agent": "Mozilla/5.0"}, "apple_privacy"),
        (CLICK, {"agent": "Mozilla/5.0"}, None),
        (OPEN, {"method": "HEAD"}, "method"),
        (CLICK, {"purpose": "prefetch;prerender"}, "prefetch"),
        (OPEN, {"agent": " "}, "no_agent"),
        (CLICK, {"agent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"}, "scanner"),
        (CLICK, {"agent": "python-requests/2.32"}, "scanner"),
        (CLICK, {"agent": "Mozilla/5.0 (X11) HeadlessChrome/142.0"}, "scanner"),
        (OPEN, {"after_delivery": -0.1}, "before_delivery"),
        (OPEN, {"after_delivery": 0.5}, None),
        (CLICK, {"after_delivery": 9.9}, "soon"),
        (CLICK, {"after_delivery": 10.0}, None),
        (CLICK, {"links": 3}, None),
        (CLICK, {"links": 4}, "burst"),
    ],
)
def test_who_it_was(seen: Circumstances, changes: dict[str, Any], code: str | None) -> None:
    assert machine(attrs.evolve(seen, **changes)) == code
    assert code is None or code in REASONS
