"""Makes docs/overview.png, the picture of the operator's console, from a real daemon that delivers to its sandbox for some minutes.

`python -m tests.end_to_end.picture [minutes]` needs Chromium. Every 15 seconds adds a point to the lines, so take five minutes or more.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyotp
from playwright.sync_api import sync_playwright

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.end_to_end.rig import PROJECT, Daemon, free_port

PASSWORD = "seven quiet green lamps"
SIZE = {"width": 1180, "height": 800}


def send(daemon: Daemon, seconds: float) -> None:
    """Sends some emails a second, now more and now less; some bounce, some are deferred, some are scheduled."""
    chance, sender = random.Random(7), f"hello@{daemon.facts['domain']}"
    end, speed = time.monotonic() + seconds, 4.0
    while time.monotonic() < end:
        speed = min(10.0, max(1.0, speed + chance.uniform(-1, 1)))
        kind = chance.choices(["ann", "bounced", "delayed"], [90, 3, 7])[0]
        email = {"from": sender, "to": f"{kind}+{chance.random()}@example.net", "subject": "Your order", "text": "It has shipped."}
        later = {"scheduled_at": "in 2 hours"} if chance.random() < 0.02 else {}
        assert daemon.call("POST", "/emails", {**email, **later}).status == 200
        time.sleep(1 / speed)


def take(link: str, file: Path) -> None:
    """`link`: for the set-up of an operator's sign-in."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.goto(link)
        page.get_by_label("New password").fill(PASSWORD)
        page.get_by_label("6-digit code").fill(pyotp.TOTP(page.locator("#secret").inner_text()).now())
        page.get_by_role("button", name="Finish").click()
        page.get_by_role("heading", name="Overview").wait_for()
        page.screenshot(path=file, full_page=True)
        browser.close()


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
    with tempfile.TemporaryDirectory() as name:
        folder, console, inbox = Path(name), free_port(), free_port()
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "pg", {"fsync": "off"})
        changes: dict[str, dict[str, object]] = {
            "console": {"listen": [f"tcp:{console}:interface=127.0.0.1"], "url": f"http://localhost:{console}"},
            "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}, "retry": [60, 300]},
        }
        daemon = Daemon(folder, postgres.start_blocking(), changes)
        daemon.start()
        try:
            send(daemon, minutes * 60)
            take(daemon.command("operator", "add", "ann@operator.example").strip(), PROJECT / "docs/overview.png")
        finally:
            daemon.stop()
            postgres.stop_blocking()


if __name__ == "__main__":
    main()
