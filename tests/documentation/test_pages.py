"""The Markdown of the documentation site: every page has its place, every link leads somewhere, and the reference is that of the API."""

from __future__ import annotations

import pytest

from mailsvc.http.openapi import ERRORS
from mailsvc.settings import reader
from mailsvc.settings.schema import Settings
from tests.documentation.builder import builder, pages
from tests.http.rig import Rig


def test_no_link_leads_nowhere() -> None:
    assert builder().broken(pages()) == []
    assert len(pages()) > 100


@pytest.mark.parametrize("link", ["missing.md", "api.md#missing", "#missing", "../CONTRIBUTING.md", "files/etc/missing.yml"])
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert builder().broken({**pages(), "new.md": f"# New\n\n[x]({link})\n"}) == [f"new.md: {link}"]


@pytest.mark.parametrize(
    "text", ["[x](api.md#sending)", "[x](#new)", "`[x](missing.md)`", "```\n[x](missing.md)\n```", "[x](files/etc/alerts.yml)"]
)
def test_other_links_and_those_in_code_are_left_alone(text: str) -> None:
    assert builder().broken({**pages(), "new.md": f"# New\n\n{text}\n"}) == []


def test_a_page_without_a_place_is_an_error() -> None:
    with pytest.raises(AssertionError, match="puts these pages nowhere: new"):
        list(builder()._trees({path: "" for path in [*pages(), "new.md"] if path != "index.md"}))


def test_links_out_of_the_documentation_are_moved() -> None:
    assert "](project/contributing.md#recipes)" in pages()["architecture.md"]
    assert "](files/etc/alerts.yml)" in pages()["operations.md"]
    assert "](../reliability.md)" in pages()["compliance/README.md"]
    assert "](../architecture.md)" in pages()["project/readme.md"]


def test_the_reference_describes_the_api_as_it_is() -> None:
    document = Rig().api.document()
    described = builder().description()
    assert described["paths"] == document["paths"] and described["components"] == document["components"]


def test_every_endpoint_error_event_and_setting_has_its_place() -> None:
    document = Rig().api.document()
    text = "".join(text for path, text in pages().items() if path.startswith("reference/api/"))
    aliases = {"/email", "/email/sending", "/emails/sending"}
    missing = [f"{m.upper()} {p}" for p, methods in document["paths"].items() for m in methods if f"`{m.upper()} {p}` needs" not in text]
    assert {each.partition(" ")[2] for each in missing} == aliases
    assert [f"## Status {status}" in pages()["reference/errors.md"] for status in ERRORS] == [True] * len(ERRORS)
    assert all(f"## {kind}\n" in pages()["reference/events.md"] for kind in document["webhooks"])
    assert all(f"| `{key}` |" in pages()["reference/settings.md"] for _, key, _ in reader.keys(Settings))


def test_nested_fields_are_listed() -> None:
    assert "| `attachments[].filename` | string or null | no |" in pages()["reference/api/emails.md"]
