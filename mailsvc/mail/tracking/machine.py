"""Which opens and clicks are likely made by programs rather than by people. Pure.

Nothing proves that a request comes from a person, so these are rules of thumb, each with a code that is stored with the event. Image
proxies that load a picture when somebody reads the message (of Gmail and Yahoo, for example) are not among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import attrs

SOON = 10.0  # seconds after delivery within which nobody has read a message and followed a link
LINKS, BURST = 4, 3.0  # this many different links of a message within so many seconds
AGENT_MAX = 300  # characters of a user agent that are looked at and stored

# The codes, and what they mean to a reader of a timeline.
REASONS: Mapping[str, str] = {
    "method": "a program that asked for the header only",
    "prefetch": "a program that loads pages in advance",
    "no_agent": "a program that does not say what it is",
    "apple_privacy": "Apple Mail, which loads pictures of every message",
    "scanner": "a known scanner, preview or bot",
    "before_delivery": "a scanner that looked at the message before it was delivered",
    "soon": "a scanner that followed links right after delivery",
    "burst": "a scanner that followed several links at once",
}
_APPLE = "Mozilla/5.0"  # and nothing else
# Parts of the user agents of mail security products, link previews, libraries and crawlers, in lower case.
_PROGRAMS = (
    "bot/", "bot;", "bot)", "crawl", "spider", "scanner", "preview", "barracuda", "proofpoint", "mimecast", "messagelabs", "symantec",
    "trendmicro", "fireeye", "sophos", "cloudmark", "zscaler", "ironport", "mailscanner", "virustotal", "urlscan", "zgrab",
    "headlesschrome", "phantomjs", "facebookexternalhit", "whatsapp", "skypeuripreview", "slack-imgproxy", "python-", "aiohttp",
    "curl/", "wget/", "go-http-client", "java/", "apache-httpclient", "okhttp", "libwww-perl", "guzzlehttp", "node-fetch", "axios/",
    "ruby",
)  # fmt: skip


@attrs.frozen
class Circumstances:
    """What is known about an open or a click.

    `agent` and `purpose`: the header fields User-Agent and Sec-Purpose (or its former names). `after_delivery`: seconds since the server of
    the recipient accepted the message, None if that is not known. `links`: different links of the message that were followed within BURST
    seconds, this one included.
    """

    click: bool
    method: str
    agent: str
    purpose: str = ""
    after_delivery: float | None = None
    links: int = 0


@lru_cache(2048)
def _is_program(agent: str) -> bool:
    return any(name in agent for name in _PROGRAMS)


def machine(seen: Circumstances) -> str | None:
    """The code of the first rule that applies, or None if it may have been a person."""
    agent, after = seen.agent.lower(), seen.after_delivery
    if seen.method != "GET":
        return "method"
    if "prefetch" in seen.purpose.lower() or "preview" in seen.purpose.lower():
        return "prefetch"
    if not agent.strip():
        return "no_agent"
    if seen.agent == _APPLE and not seen.click:
        return "apple_privacy"
    if _is_program(agent):
        return "scanner"
    if after is not None and after < 0:
        return "before_delivery"
    if seen.click and after is not None and after < SOON:
        return "soon"
    return "burst" if seen.links >= LINKS else None
