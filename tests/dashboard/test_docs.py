"""Links to the documentation: only where it is installed, and only to chapters that exist."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.dashboard import docs
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig
from tests.end_to_end.rig import PROJECT


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/dashboard", "dashboard"),
        ("/dashboard/", "dashboard"),
        ("/dashboard/emails/", "bounces"),
        ("/dashboard/webhooks/1/events/2", "webhooks"),
        ("/dashboard/settings/profile", "security"),
        ("/dashboard/settings/smtp", "smtp"),
        ("/dashboard/settings/smtpx", "security"),
        ("/dashboard/broadcasts/1", "broadcasts"),
        ("/dashboard/broadcasts/1/edit", "editor"),
    ],
)
def test_each_page_has_a_chapter(path: str, page: str) -> None:
    assert docs.chapter(path).page == page
    assert (PROJECT / f"docs/{page}.md").is_file()


def test_all_chapters_exist() -> None:
    assert [chapter for chapter in docs.CHAPTERS.values() if not (PROJECT / f"docs/{chapter.page}.md").is_file()] == []


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("installed", [True, False])
async def test_pages_link_to_the_documentation_where_it_is_installed(pool: Pool, monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(docs, "installed", lambda: installed)
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    page = (await (await rig.inside("ann@example.com")).get("/dashboard/webhooks")).text
    assert ('href="/docs/latest/webhooks.html">Documentation: Webhooks' in page) is installed
    assert ('href="/docs/latest/index.html"' in page) is installed
