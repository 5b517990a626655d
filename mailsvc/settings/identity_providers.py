"""The settings of signing in at other services: Google, or whatever speaks OpenID Connect, and GitHub."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from mailsvc.settings.reader import SettingsError, setting


def _url(value: str) -> str | None:
    good = re.fullmatch(r"https://[^/\s?#]+(/[^\s?#]*[^/\s?#])?|http://(127\.0\.0\.1|localhost)(:\d+)?(/[^\s?#]*[^/\s?#])?", value)
    return None if good else "expected https:// and a host, without a slash at the end"


@attrs.frozen
class SignIn:
    """Who else may say who somebody is. A service is offered when its client id is set."""

    google_client: str | None = setting(
        None, "The client id that Google gave; its redirect URI is <base_url>/dashboard/sign-in/with/google/back.", example="1234.apps…"
    )
    google_secret: Path | None = setting(None, "The file with the client secret.", example="/etc/mailsvc/google.secret")
    google_issuer: str = setting(
        "https://accounts.google.com", "The issuer, whose endpoints are discovered; any that speaks OpenID Connect.", check=_url
    )
    google_name: str = setting("Google", "What the button calls it.")
    github_client: str | None = setting(
        None, "The client id that GitHub gave; its callback URL is <base_url>/dashboard/sign-in/with/github/back.", example="Ov23li…"
    )
    github_secret: Path | None = setting(None, "The file with the client secret.", example="/etc/mailsvc/github.secret")
    github_url: str = setting("https://github.com", "GitHub, or a GitHub Enterprise Server.", check=_url)
    github_api: str = setting("https://api.github.com", "Its API; of an Enterprise Server https://HOST/api/v3.", check=_url)


def secret_of(path: Path | None, key: str) -> str:
    """The client secret in a file, or SettingsError."""
    if path is None:
        raise SettingsError(f"The setting sign_in.{key} is missing; a client id needs its secret.")
    try:
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"The file {path} of sign_in.{key} cannot be read: {reason}.") from None
    if not secret:
        raise SettingsError(f"The file {path} of sign_in.{key} is empty.")
    return secret
