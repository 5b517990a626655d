"""Errors as people see them who opened a link in an email: a page. Programs get the same error in JSON."""

from __future__ import annotations

from collections.abc import Coroutine
from html import escape
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mailsvc.http.answer import translated
from mailsvc.http.request import Request
from mailsvc.runtime.failures import forget

UNAVAILABLE = "This page is not available at the moment"
AGAIN = "Reload it in a minute."
AGAIN_POSTED = "Your choice may not have been saved. Reload the page in a minute to send it again."
FAILED = "Something went wrong"
FOR_READER = {  # headers of each page that a link in an email opens: it is for the person with the link alone
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
    "Cache-Control": "private, no-store",
}
HEADERS = {
    **FOR_READER,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body style="font:16px/1.5 system-ui,sans-serif;margin:2rem"><main><h1 style="font-size:1.3rem">{title}</h1>
<p>{text}</p></main></body></html>
"""


def wants_page(request: Request) -> bool:
    return any(b"text/html" in value.lower() for value in request.requestHeaders.getRawHeaders(b"accept", []))


def error_page(request: Request, status: int, title: str, text: str) -> bytes:
    request.content_type = b"text/html; charset=utf-8"
    for name, value in {"Content-Type": "text/html; charset=utf-8", **HEADERS}.items():
        request.setHeader(name, value)
    return request.sized(status, _PAGE.format(title=escape(title), text=escape(text)).encode())


async def or_error_page(request: Request, work: Coroutine[Deferred[Any], Any, bytes]) -> bytes:
    """The response of `work`. If it fails, a browser gets a page with the error's status and headers."""
    try:
        return await work
    except Exception as error:
        if not wants_page(request):
            raise
        problem = translated(Failure())
        forget(error)
    for name, value in problem.headers.items():
        request.setHeader(name, value)
    if problem.status == 503:
        return error_page(request, 503, UNAVAILABLE, AGAIN_POSTED if request.method == b"POST" else AGAIN)
    return error_page(request, problem.status, FAILED, problem.message)
