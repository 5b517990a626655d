"""Builds the documentation site: `build.py OUT` writes the archive that the daemon serves at /docs/ (mailsvc/http/docs_site.py).

`build.py OUT --sources FOLDER` only writes the Markdown that Sphinx would get: docs/, the pages of the project's own folder, and the
reference pages, which come from the code. A link that leads nowhere is an error in both cases, and so is a warning of Sphinx.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from klein import Klein

from mailsvc import __version__
from mailsvc.http import api
from mailsvc.http.openapi import document, endpoints
from mailsvc.http.reference import api_pages, other_pages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LEFT_OUT = "changes/"  # notes that become part of the changelog with a release
# The parts of the site: title, and pages in their order. A page in none of them is an error; `*` are all in a folder.
PARTS = {
    "Tutorial": ("tutorial/first-email", "tutorial/first-domain", "tutorial/first-webhook", "tutorial/first-broadcast"),
    "How-to guides": (
        "how-to/django", "how-to/fastapi", "how-to/nextjs", "how-to/rails", "how-to/laravel", "how-to/smtp-services", "moving",
        "mail-merge", "dashboard", "editor", "operations", "checklist", "reverse-proxy", "sending-sources", "regions",
    ),
    "Reference": (
        "api", "clients", "reference/api/*", "reference/events", "reference/errors", "webhooks", "smtp", "bounces", "reference/settings",
        "commands", "metrics", "data", "rfc", "gaps", "glossary",
    ),
    "Explanation": (
        "architecture", "reliability", "performance", "scale", "security", "audit", "deliverability", "privacy", "audience", "broadcasts",
        "domains", "tracking", "plans", "compliance/*", "decisions/*",
    ),
    "Project": ("project/*",),
}  # fmt: skip
# What the theme leaves out, for people who use a keyboard or a screen reader.
ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Documentation">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_LINK_TO_NOTES = re.compile(r"\[([^\[\]]+)\]\((?:[./\w]*/)?changes/[^()\s]*\)")
_CODE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


def description() -> dict[str, Any]:
    """The response of `GET /openapi.json`, of the collections that http/api.py knows."""
    collections = [each for each in vars(api).values() if isinstance(each, type) and isinstance(vars(each).get("app"), Klein)]
    described = [each for each in collections if any(one.operation for one in endpoints([each]))]
    return document(described, "")


def sources() -> dict[str, str]:
    """The Markdown of each page by its path."""
    found = {path.relative_to(ROOT / "docs").as_posix(): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    found = {path: text for path, text in found.items() if not path.startswith(LEFT_OUT)}
    for name in OUTSIDE:
        found[_place(name)] = _moved(name, (ROOT / name).read_text("utf-8"), found)
    for path in [path for path in found if not path.startswith("project/")]:
        found[path] = _moved(f"docs/{path}", found[path], found)
    described = description()
    found |= {f"reference/api/{name}.md": text for name, text in api_pages.pages(described).items()}
    found["reference/errors.md"] = other_pages.errors(described)
    found["reference/events.md"] = other_pages.events(described)
    found["reference/settings.md"] = other_pages.settings()
    found["index.md"] = (HERE / "index.md").read_text("utf-8").replace("TOCTREES", "\n\n".join(_trees(found)))
    return found


def _place(name: str) -> str:
    """Where a file of the repository is on the site."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"project/{name.lower()}" if name in OUTSIDE else f"files/{name}"


def _moved(name: str, text: str, pages: dict[str, str]) -> str:
    """The text of a page with the links that lead out of docs/, or into it from outside, changed to where the files are on the site."""

    def new(found: re.Match[str]) -> str:
        target, _, anchor = found[1].partition("#")
        if not target or ":" in target:
            return found[0]
        wanted = normpath(f"{name}/../{target}")
        if name.startswith("docs/") and wanted.startswith("docs/") and _place(wanted) in pages:
            return found[0]
        return f"]({relpath(_place(wanted), _place(name) + '/..')}{'#' + anchor if anchor else ''})"

    return _LINK.sub(new, _LINK_TO_NOTES.sub(r"\1", text))


def _trees(pages: dict[str, str]) -> Iterator[str]:
    left = {path.removesuffix(".md") for path in pages}
    for part, names in PARTS.items():
        listed: list[str] = []
        for name in names:
            folder = name.removesuffix("*")
            inside = sorted(page for page in left if page.startswith(folder) and page.count("/") == folder.count("/"))
            listed += sorted(inside, key=lambda page: not page.endswith("/readme")) if name.endswith("*") else [name]
        missing = set(listed) - left
        assert not missing, f"these pages do not exist: {', '.join(sorted(missing))}"
        left -= set(listed)
        yield f"```{{toctree}}\n:hidden:\n:caption: {part}\n\n" + "\n".join(listed) + "\n```"
    assert not left, f"etc/site/build.py puts these pages nowhere: {', '.join(sorted(left))}"


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,4} (.+?)\s*$", _CODE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return {*found}


def broken(pages: dict[str, str]) -> list[str]:
    """The links that lead nowhere, each with its page."""
    known = {path: anchors(text) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", _CODE.sub("", text))):
            target, _, anchor = link.partition("#")
            if ":" in target:
                continue
            wanted = normpath(f"{path}/../{target}") if target else path
            source = ROOT / wanted.removeprefix("files/") if wanted.startswith("files/") else ROOT / "docs" / wanted
            exists = source.is_file() and not wanted.startswith("..")
            if not (anchor in known[wanted] or not anchor if wanted in known else exists and not anchor):
                wrong.append(f"{path}: {link}")
    return wrong


def write_sources(folder: Path) -> None:
    pages = sources()
    wrong = broken(pages)
    if wrong:
        sys.exit("These links lead nowhere:\n  " + "\n  ".join(wrong))
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
        for link in re.findall(r"\]\(((?:\.\./)*files/[^()#\s]+)\)", text):
            name = normpath(f"{path}/../{link}")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            source = ROOT / name.removeprefix("files/")
            assert source.is_file(), f"{path} links to {name}, which is not a file"
            shutil.copyfile(source, folder / name)
    for picture in (ROOT / "docs").rglob("*.png"):
        place = folder / picture.relative_to(ROOT / "docs")
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(picture, place)


def pack(html: Path, archive: Path) -> None:
    """All files, compressed with gzip, and what the server needs to know: the release, and the hashes of scripts and styles in pages."""
    scripts, styles, attributes = set[str](), set[str](), set[str]()
    for page in html.rglob("*.html"):
        text = page.read_text("utf-8")
        for theirs, ours in ACCESSIBLE.items():
            text = text.replace(theirs, ours)
        page.write_text(text, "utf-8")
        scripts |= set(re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
        styles |= set(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
        attributes |= set(re.findall(r'<[a-z]+ [^<>]*?style="([^"]*)"', text))
    manifest = {"version": __version__, "scripts": _hashes(scripts), "styles": _hashes(styles), "attributes": _hashes(attributes)}
    unfinished = archive.with_name(f".{archive.name}.new")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(manifest))
        for path in sorted(each for each in html.rglob("*") if each.is_file()):
            name = path.relative_to(html).as_posix()
            if not name.startswith((".", "_sources/")) and path.suffix not in (".map", ".inv", ".buildinfo"):
                packed.writestr(zipfile.ZipInfo(f"site/{name}"), gzip.compress(path.read_bytes(), 9, mtime=0))
    unfinished.replace(archive)


def _hashes(texts: set[str]) -> list[str]:
    return sorted("'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'" for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("--sources", type=Path)
    given = parser.parse_args()
    if given.sources:
        write_sources(given.sources)
        return
    with tempfile.TemporaryDirectory() as work:
        source, html = Path(work, "source"), Path(work, "html")
        write_sources(source)
        options = ["--quiet", "--fail-on-warning", "--keep-going", "--jobs", "auto", "--conf-dir", str(HERE), "--builder", "html"]
        done = subprocess.run([sys.executable, "-m", "sphinx", *options, str(source), str(html)], check=False)  # noqa: S603
        if done.returncode:
            sys.exit(done.returncode)
        pack(html, given.archive)
    print(f"{given.archive}: {given.archive.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
