"""Makes docs/screenshots/*.png, the pictures of the dashboard in the docs, from a real daemon that delivers to its sandbox.

`python -m tests.screenshots` needs Chromium and takes less than a minute. The figures of earlier days are inserted.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import psycopg2
from playwright.sync_api import Page, expect, sync_playwright

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.signing_in import first_sign_in

FOLDER = PROJECT / "docs/screenshots"
SIZE = {"width": 1180, "height": 640}
HEAVIEST = 150_000  # bytes
SUBJECTS = (
    "Your order has shipped", "Confirm your email address", "Reset your password", "Your receipt from Acme", "You have a new comment",
    "Your trial ends in three days", "Sign-in from a new device",
)  # fmt: skip
NAMES = ("ann", "bo", "carla", "dmitri", "elif", "farah", "goran", "hana", "ivo", "june")
HISTORY = """
INSERT INTO rollups (account_id, hour, domain_id, type, count)
SELECT d.account_id, date_trunc('hour', at), d.id, type, round(base * (1.1 + 0.35 * sin(extract(epoch FROM at) / 90000)) * share)::int
FROM domains d, generate_series(now() - interval '29 days', now() - interval '1 hour', '1 hour') AS at,
     (VALUES ('email.sent', 168), ('email.delivered', 163), ('email.bounced.permanent', 2.4), ('email.bounced.transient', 1.2),
             ('email.complained', 0.3475), ('email.suppressed', 1.5)) AS counted (type, base),
     LATERAL (SELECT CASE WHEN extract(isodow FROM at) < 6 THEN 1.0 ELSE 0.55 END) AS week (share)
WHERE d.name = %s ON CONFLICT DO NOTHING
"""
READ = """
INSERT INTO broadcast_counts (account_id, broadcast_id, hour, type, count)
SELECT account_id, id, date_trunc('hour', now(), 'UTC'), type, count
FROM broadcasts, (VALUES ('email.opened', 31), ('email.opened.unique', 21), ('email.clicked', 11), ('email.clicked.unique', 8),
                         ('email.unsubscribed', 1)) AS counted (type, count) WHERE id = %s
"""


def execute(database: str, statement: str, value: str) -> None:
    with contextlib.closing(psycopg2.connect(database)) as link, link, link.cursor() as cursor:
        cursor.execute(statement, (value,))


def mails(daemon: Daemon) -> str:
    """Sends some emails. Returns the ID of one to two recipients, of which one bounces."""
    chance, sender = random.Random(7), f"Acme <hello@{daemon.facts['domain']}>"
    for number in range(24):
        kind = "complained" if number == 9 else "bounced+2" if number == 15 else "delayed" if number == 21 else NAMES[number % len(NAMES)]
        html = "<p>Hello,</p><p>thank you for your order.</p>"
        mail = {"from": sender, "to": f"{kind}@example.net", "subject": chance.choice(SUBJECTS), "html": html}
        assert daemon.call("POST", "/emails", mail | ({"scheduled_at": "in 3 hours"} if number == 20 else {})).status == 200
    html = (
        "<h1>It’s on its way</h1><p>Your order 20417 left our warehouse this morning.</p><p><a href='https://example.net'>Track it</a></p>"
    )
    mail = {"from": sender, "to": ["ann@example.net", "bounced+3@example.net"], "subject": "Your order has shipped", "html": html}
    sent: str = daemon.call("POST", "/emails", mail).body["id"]
    done = ("delivered", "bounced")
    daemon.until(f"/emails/{sent}", daemon.facts["api_key"], lambda body: body["last_event"] in done)
    return sent


def broadcast(daemon: Daemon, database: str) -> str:
    """Sends a broadcast and returns its ID."""
    segment = daemon.call("POST", "/segments", {"name": "Newsletter"}).body["id"]
    for number in range(40):
        name = "bounced" if number == 3 else f"{NAMES[number % len(NAMES)]}.{number}"
        assert daemon.call("POST", "/contacts", {"email": f"{name}@example.net", "segments": [segment]}).status == 201
    content = {
        "name": "November news",
        "subject": "What’s new in November",
        "html": "<p>News</p><a href='{{{RESEND_UNSUBSCRIBE_URL}}}'>Unsubscribe</a>",
    }
    given = {"segment_id": segment, "from": f"Acme <news@{daemon.facts['domain']}>"}
    created: str = daemon.call("POST", "/broadcasts", given | content).body["id"]
    assert daemon.call("POST", f"/broadcasts/{created}/send", {}).status == 200
    daemon.until(f"/broadcasts/{created}", daemon.facts["api_key"], lambda body: body["status"] == "sent")
    execute(database, READ, created)
    return created


def take(page: Page, paths: Mapping[str, str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, path in paths.items():
        page.goto(path)
        page.evaluate("document.fonts.ready")
        page.mouse.move(0, 0)
        file = FOLDER / f"{name}.png"
        page.screenshot(path=file)
        assert file.stat().st_size < HEAVIEST, f"{file} has {file.stat().st_size} bytes"


def pictures(daemon: Daemon, database: str) -> None:
    execute(database, HISTORY, daemon.facts["domain"])
    news, email = broadcast(daemon, database), mails(daemon)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(
            base_url=f"http://127.0.0.1:{daemon.port}",
            viewport=SIZE,
            color_scheme="light",
            reduced_motion="reduce",
            timezone_id="Europe/Berlin",  # type: ignore[arg-type]
        )
        page = context.new_page()
        first_sign_in(page, daemon.facts["sign_in"])
        page.goto("/dashboard/domains")
        domain = UUID((page.locator("main a.cover").first.get_attribute("href") or "").rpartition("/")[2])
        page.goto(f"/dashboard/broadcasts/{news}")
        expect(page.locator(".figure").first).to_contain_text("39", timeout=30_000)
        take(page, {
            "home": "/dashboard", "emails": "/dashboard/emails", "email": f"/dashboard/emails/{email}",
            "domain": f"/dashboard/domains/{domain}", "metrics": "/dashboard/metrics?days=30", "broadcast": f"/dashboard/broadcasts/{news}",
        })  # fmt: skip
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, inbox = Path(name), free_port()
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "pg", {"fsync": "off"})
        database = postgres.start_blocking()
        changes: dict[str, dict[str, object]] = {
            "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        }
        daemon = Daemon(folder, database, changes)
        daemon.start()
        try:
            pictures(daemon, database)
        finally:
            daemon.stop()
            postgres.stop_blocking()


if __name__ == "__main__":
    main()
