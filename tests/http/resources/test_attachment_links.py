"""Attachments with a `path`: fetched before the email is composed, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from mailsvc.http.resources.attachment_links import LINKS, SECONDS, TOGETHER
from tests.http.rig import Rig

EMAIL: dict[str, Any] = {"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t"}


def linked(*attachments: dict[str, Any]) -> dict[str, Any]:
    return EMAIL | {"attachments": list(attachments)}


def sent(rig: Rig) -> Any:
    [(_, [email], *_)] = rig.intake.submitted
    return email.content.attachments


def test_linked_file_is_attached() -> None:
    rig = Rig()
    rig.web.pages["https://example.com/files/my%20bill.pdf?x=1"] = (200, b"%PDF", "application/pdf; charset=x")
    rig.web.pages["https://example.com/"] = (200, b"x", "nonsense")
    plain = {"content": "aGk=", "filename": "hi.txt"}
    links = (
        {"path": "https://example.com/files/my%20bill.pdf?x=1"},
        {"path": "https://example.com/", "filename": "x.bin", "content_id": "c"},
    )
    assert rig.request("POST", "/emails", linked(links[0], plain, links[1])).status == 200
    bill, hi, named = sent(rig)
    assert (bill.content, bill.filename, bill.content_type) == (b"%PDF", "my bill.pdf", "application/pdf")
    assert (hi.content, hi.filename) == (b"hi", "hi.txt")
    assert rig.budget.used == 0
    assert (named.content, named.filename, named.content_type, named.content_id) == (b"x", "x.bin", None, "c")


@pytest.mark.parametrize("empty", ["", [], None, {"type": "Buffer", "data": []}])
def test_an_empty_content_beside_a_path_is_not_set(empty: Any) -> None:
    rig = Rig()
    rig.web.pages["https://example.com/a"] = (200, b"%PDF", "application/pdf")
    assert rig.request("POST", "/emails", linked({"path": "https://example.com/a", "content": empty})).status == 200
    assert [each.content for each in sent(rig)] == [b"%PDF"]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (None, "The connection was refused."),
        ((404, b"", "text/plain"), "The response was 404."),
        ((302, b"", "text/plain"), "The response was 302, and redirects are not followed. Give the URL that it leads to."),
        ((200, b"x" * 1001, "text/plain"), "It is too large."),
    ],
)
def test_failed_download_names_the_attachment(page: Any, why: str) -> None:
    rig = Rig()
    if page is not None:
        rig.web.pages["https://example.com/a"] = page
    response = rig.request("POST", "/emails", linked({"path": "https://example.com/a"}))
    assert response.problem == (422, "invalid_attachment")
    assert response.json["message"] == f"The `attachments[0].path` could not be fetched. {why}"
    assert rig.intake.submitted == []


def test_downloads_of_a_request_share_one_size_limit() -> None:
    rig = Rig()
    rig.web.pages["https://example.com/a"] = (200, b"x" * 600, "text/plain")
    response = rig.request("POST", "/emails", linked({"path": "https://example.com/a"}, {"path": "https://example.com/a"}))
    assert response.problem == (422, "invalid_attachment")
    assert rig.request("POST", "/emails", linked(*[{"path": "https://example.com/a"}] * 51)).problem == (422, "validation_error")


def test_permissive_batch_is_sent_without_the_failed_download() -> None:
    rig = Rig()
    rig.web.pages["https://example.com/a"] = (200, b"x", "text/plain")
    batch = [linked({"path": "https://example.com/b"}), linked({"path": "https://example.com/a"}), EMAIL]
    assert rig.request("POST", "/emails/batch", batch).problem == (422, "invalid_attachment")
    assert rig.intake.submitted == []
    answer = rig.request("POST", "/emails/batch", batch, x_batch_validation="permissive")
    assert answer.status == 200
    assert [each["index"] for each in answer.json["errors"]] == [0]
    assert len(answer.json["data"]) == 2


def test_path_is_ignored_if_there_is_content() -> None:
    rig = Rig()
    assert rig.request("POST", "/emails", linked({"path": "https://example.com/a", "content": "aGk="})).status == 200
    assert rig.web.requests == []


def test_slow_servers_keep_a_request_waiting_for_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, asked = Rig(), list[float]()
    slow = rig.web.fetch

    async def fetch(method: str, url: str, *, seconds: float, **options: Any) -> Any:
        asked.append(seconds)
        rig.clock.advance(25.0)
        return await slow(method, url, seconds=seconds, **options)

    monkeypatch.setattr(rig.web, "fetch", fetch)
    links = [{"path": f"https://example.com/{n}"} for n in range(LINKS)]
    rig.web.pages = {link["path"]: (200, b"x", "text/plain") for link in links}
    response = rig.request("POST", "/emails", linked(*links))
    assert asked == [SECONDS, SECONDS, TOGETHER - 50]
    why = "All files of a request have to arrive within 60 seconds."
    assert response.json["message"] == f"The `attachments[3].path` could not be fetched. {why}"
