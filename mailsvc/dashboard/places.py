"""Where the command palette and the keyboard shortcuts lead. Data; static/shortcuts.js uses it."""

from __future__ import annotations

import attrs


@attrs.frozen
class Place:
    """A page below /dashboard. `key`: opens it after `g`. `words`: other words that find it."""

    path: str
    name: str
    key: str = ""
    words: str = ""


PLACES = (
    Place("", "Home", "h", "start overview"),
    Place("/emails", "Emails", "e", "messages sent"),
    Place("/broadcasts", "Broadcasts", "b", "newsletter campaign"),
    Place("/audience", "Contacts", "a", "audience subscribers"),
    Place("/audience/new", "Add a contact", "", "audience new"),
    Place("/audience/segments", "Segments", "", "audience"),
    Place("/audience/topics", "Topics", "", "audience preferences"),
    Place("/audience/imports", "Imports", "", "audience csv"),
    Place("/domains", "Domains", "d", "dns dkim add"),
    Place("/keys", "API keys", "k", "create revoke"),
    Place("/metrics", "Metrics", "m", "charts bounce rate"),
    Place("/logs", "Logs", "l", "requests sessions"),
    Place("/webhooks", "Webhooks", "w", "endpoints events"),
    Place("/suppressions", "Suppressions", "s", "blocked addresses"),
    Place("/sandbox", "Sandbox inbox", "i", "development"),
    Place("/settings", "Team", "t", "settings members invite"),
    Place("/settings/profile", "Profile", "p", "settings name email address time zone shortcuts"),
    Place("/settings/security", "Security", "", "settings password passkey sessions two-factor"),
    Place("/settings/usage", "Usage", "u", "settings quota limits"),
    Place("/settings/plan", "Plan", "", "settings billing price upgrade"),
    Place("/settings/smtp", "SMTP", "", "settings relay ports credentials"),
    Place("/settings/sso", "Single sign-on", "", "settings openid"),
    Place("/settings/data", "Data", "", "settings retention close account"),
    Place("/settings/privacy", "Privacy", "", "settings erase export person"),
    Place("/settings/audit", "Audit log", "", "settings changes"),
)
