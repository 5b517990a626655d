"""The documentation site as the API's server serves it."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import attrs
import pytest

from mailsvc.http.docs_site import HOME, DocsSite, installed
from tests.http.rig import Response, Rig

PAGE = b"<h1>mailsvc</h1>"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "site.zip"
    manifest = {"version": "1.2", "scripts": ["'sha256-one'"], "styles": [], "attributes": ["'sha256-two'"]}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("manifest.json", json.dumps(manifest))
        for name, content in {"index.html": PAGE, "how-to/index.html": PAGE, "_static/site.css": b"p {}", "a.woff2": b"font"}.items():
            packed.writestr(f"site/{name}", gzip.compress(content))
    return path


@pytest.fixture
def rig(archive: Path) -> Rig:
    return served(archive)


def served(archive: Path, *, can_try: bool = False) -> Rig:
    site, rig = installed(archive), Rig()
    assert site is not None
    rig.site = attrs.evolve(rig.api, pages={HOME: DocsSite(site, can_try=can_try)}).site()
    return rig


def get(rig: Rig, path: str, method: str = "GET", **headers: str) -> Response:
    connection = rig.connect()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    connection.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    [response] = connection.responses(head=method == "HEAD")
    return response


def test_without_an_archive_there_is_no_site(tmp_path: Path) -> None:
    assert installed(tmp_path / "missing.zip") is None


def test_pages_are_served_with_a_policy_that_allows_no_other_host(rig: Rig) -> None:
    found = get(rig, "/docs/1.2/index.html")
    assert (found.status, found.body, found.headers["content-type"]) == (200, PAGE, "text/html; charset=utf-8")
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self' 'sha256-one'; style-src 'self'  'unsafe-hashes' 'sha256-two'" in policy
    assert "http" not in policy and found.headers["x-content-type-options"] == "nosniff"
    assert get(rig, "/docs/1.2/_static/site.css").headers["content-type"] == "text/css; charset=utf-8"
    assert get(rig, "/docs/1.2/a.woff2").headers["content-type"] == "font/woff2"


def test_compressed_cached_and_head(rig: Rig) -> None:
    packed = get(rig, "/docs/1.2/index.html", accept_encoding="br, gzip")
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == PAGE
    assert packed.headers["cache-control"] == "public, max-age=600" and packed.headers["vary"] == "Accept-Encoding"
    again = get(rig, "/docs/1.2/index.html", if_none_match=packed.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert "immutable" in get(rig, "/docs/1.2/_static/site.css?v=1").headers["cache-control"]
    head = get(rig, "/docs/1.2/index.html", "HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(PAGE)), b"")


@pytest.mark.parametrize(
    ("path", "target"),
    {
        "/docs": "index.html", "/docs/": "index.html", "/docs/1.2/": "index.html", "/docs/latest": "index.html",
        "/docs/latest/how-to": "how-to/index.html", "/docs/latest/_static/site.css": "_static/site.css",
    }.items(),
)  # fmt: skip
def test_other_ways_to_a_page_lead_to_the_installed_release(rig: Rig, path: str, target: str) -> None:
    found = get(rig, path)
    assert (found.status, found.headers["location"]) == (302, f"/docs/1.2/{target}")


@pytest.mark.parametrize(
    "path",
    [
        "/docs/1.1/index.html",
        "/docs/1.2/../../etc/passwd",
        "/docs/1.2/%2e%2e/%2e%2e/site.zip",
        "/docs/1.2//etc/passwd",
        "/docs/1.2/x%00",
    ],
)
def test_anything_else_is_not_found(rig: Rig, path: str) -> None:
    found = get(rig, path)
    assert found.status == 404 and b'href="/docs/1.2/index.html"' in found.body and b"root:" not in found.body


def test_pages_may_send_requests_in_development_only(archive: Path) -> None:
    assert get(served(archive, can_try=True), "/docs/1.2/try.json").body == b"{}"
    assert get(served(archive), "/docs/1.2/try.json").body == b"null"


def test_nothing_can_be_posted(rig: Rig) -> None:
    assert get(rig, "/docs/1.2/index.html", "POST").status == 405


def test_a_path_that_is_not_utf8_is_not_found(rig: Rig) -> None:
    assert get(rig, "/docs/%ff").status == 404
