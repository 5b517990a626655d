"""Makes docs/overview.png, the picture of the operator's page, from a real daemon that delivers to its sandbox for some minutes.

`python -m tests.end_to_end.picture [minutes]` needs Chromium. Every 15 seconds adds a point to the lines, so take five minutes or more.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.end_to_end.rig import PROJECT, Daemon, free_port

TOKEN = "a-token-for-the-picture"
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


def take(url: str, file: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, color_scheme="light", http_credentials={"username": "mailsvc", "password": TOKEN})  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(url)
        page.screenshot(path=file, full_page=True)
        browser.close()


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
    with tempfile.TemporaryDirectory() as name:
        folder, metrics, inbox = Path(name), free_port(), free_port()
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "pg", {"fsync": "off"})
        changes: dict[str, dict[str, object]] = {
            "metrics": {"listen": [f"tcp:{metrics}:interface=127.0.0.1"], "token": TOKEN},
            "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}, "retry": [60, 300]},
        }
        daemon = Daemon(folder, postgres.start_blocking(), changes)
        daemon.start()
        try:
            send(daemon, minutes * 60)
            take(f"http://127.0.0.1:{metrics}/", PROJECT / "docs/overview.png")
        finally:
            daemon.stop()
            postgres.stop_blocking()


if __name__ == "__main__":
    main()
