"""Settings of the operator's console and of the public status page. Their place in the settings file: schema."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting

COMPONENTS = ("API", "SMTP", "Delivery", "Webhooks", "Dashboard")


def _components(value: tuple[str, ...]) -> str | None:
    return None if value and set(value) <= set(COMPONENTS) else f"expected one or more of: {', '.join(COMPONENTS)}"


@attrs.frozen
class Console:
    """The operator's console."""

    listen: tuple[str, ...] = setting(
        (),
        'Where to serve the console: "tcp:8026:interface=127.0.0.1" or "unix:/run/mailsvc/console.sock". Only this machine can connect. '
        "Empty: nowhere.",
        check=checks.watched,
    )
    url: str = setting(
        "http://localhost:8026", "Where operators reach the console, for example through SSH.", check=checks.base_url
    )  # fmt: skip


@attrs.frozen
class Status:
    """The public status page."""

    page: bool = setting(False, "Whether /status shows everybody how the service is doing. Operators write about incidents in the console.")
    components: tuple[str, ...] = setting(COMPONENTS, f"What the page lists: {', '.join(COMPONENTS)}.", check=_components)
