"""Serving a page: error pages and downloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from types import SimpleNamespace

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers

from mailsvc.dashboard import formatting, page
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import OutOfResources, Unavailable

CONTEXT = SimpleNamespace(
    secure=False, secret=b"s", templates=formatting.environment(navigation=(), static=str), now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
    inbox=False, sign_up=False,
)  # fmt: skip


@attrs.define
class FakeHttp:
    method: bytes = b"GET"
    path: bytes = b"/dashboard/x"
    uri: bytes = b"/dashboard/x"
    args: dict[bytes, list[bytes]] = attrs.field(factory=dict)
    requestHeaders: Headers = attrs.field(factory=Headers)
    responseHeaders: Headers = attrs.field(factory=Headers)
    code: int = 0
    written: list[bytes] = attrs.field(factory=list)

    def setResponseCode(self, code: int) -> None:
        self.code = code

    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        async for chunk in chunks:
            self.written.append(chunk)
        return True


def served(http: FakeHttp, function) -> object:
    results: list[object] = []
    Deferred.fromCoroutine(page.serve(CONTEXT, http, "public", function)).addBoth(results.append)
    return results[0]


async def pieces(error: Exception | None = None) -> AsyncGenerator[bytes, None]:
    yield b"a,b\r\n"
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("secret"), 500),
        (Unavailable("gone"), 503),
        (OutOfResources("53100", "could not extend file"), 503),
        (EncryptionError("The secret does not open."), 503),
    ],
)
def test_an_error_shows_a_page_and_cuts_off_a_download_that_has_begun(error, status):
    async def shown(request):
        raise error

    http = FakeHttp()
    body = served(http, shown)
    assert isinstance(body, bytes) and b"secret" not in body and http.code == status
    assert http.responseHeaders.getRawHeaders(b"retry-after") == ([b"5"] if status == 503 else None)
    assert b"database" not in body, "a full disk or an unusable key is another problem"

    async def downloaded(request):
        await request.download("a.csv", "text/csv", pieces(error))
        return b""

    http = FakeHttp()
    failure = served(http, downloaded)
    assert failure.value is error and http.written == [b"a,b\r\n"] and http.code == 200


def test_a_download_is_an_attachment_without_content_length():
    async def downloaded(request):
        await request.download("a.csv", "text/csv", pieces())
        return b""

    http = FakeHttp()
    assert served(http, downloaded) == b"" and http.written == [b"a,b\r\n"]
    found = {name.decode().lower(): values[0].decode() for name, values in http.responseHeaders.getAllRawHeaders()}
    assert found["content-disposition"] == 'attachment; filename="a.csv"' and "content-length" not in found
    assert found["x-content-type-options"] == "nosniff" and found["cache-control"] == "no-store"
