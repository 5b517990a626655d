"""The HTML of an email for its preview: inline images embedded, links open in a new tab. Its CSP (safety.py) restricts it. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from mailsvc.mail import mime
from mailsvc.mail.mime import Parsed

LONGEST = 4 << 20  # characters of html that a preview shows
INLINE_MOST = 8 * 1024 * 1024  # bytes of embedded images in a preview

_CID = re.compile(r"""(=\s*["']?|url\(\s*["']?)cid:([^"'\s)>]+)""", re.IGNORECASE)
_CUT = '<p style="font: 14px sans-serif; color: #b42318">This preview shows the beginning of a very long email.</p>'
_HEAD = re.compile(r"<head[^<>]*+>|<!doctype[^<>]*+>", re.IGNORECASE)


def embedded(parsed: Parsed) -> str:
    """The HTML with its attached images embedded and with links that leave the frame."""
    files: Mapping[str, mime.File] = {file.content_id: file for file in parsed.files if file.content_id}
    left = INLINE_MOST

    def image(found: re.Match[str]) -> str:
        nonlocal left
        file = files.get(found[2])
        if file is None or not file.content_type.startswith("image/") or len(file.content) > left:
            return found[0]
        left -= len(file.content)
        return f"{found[1]}data:{file.content_type};base64,{base64.b64encode(file.content).decode()}"

    whole = parsed.html or ""
    html = _CID.sub(image, whole[:LONGEST])
    base = '<base target="_blank">' + (_CUT if len(whole) > LONGEST else "")
    head = _HEAD.search(html, 0, 2000)
    return html[: head.end()] + base + html[head.end() :] if head else base + html
