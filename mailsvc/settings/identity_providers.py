"""The settings for signing in with Google (or another OpenID Connect provider) and GitHub."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from mailsvc.settings.reader import SettingsError, setting


def _url(value: str) -> str | None:
    good = re.fullmatch(r"https://[^/\s?#]+(/[^\s?#]*[^/\s?#])?|http://(127\.0\.0\.1|localhost)(:\d+)?(/[^\s?#]*[^/\s?#])?", value)
    return None if good else "expected an https URL without a trailing slash"


@attrs.frozen
class SignIn:
    """Identity providers. A provider is offered if its client ID is set."""

    google_client: str | None = setting(
        None, "The client ID from Google. Register the redirect URI <base_url>/dashboard/sign-in/with/google/back.", example="1234.apps…"
    )
    google_secret: Path | None = setting(None, "The file with Google's client secret.", example="/etc/mailsvc/google.secret")
    google_issuer: str = setting(
        "https://accounts.google.com", "The issuer, from which endpoints are discovered. Any OpenID Connect provider works.", check=_url
    )
    google_name: str = setting("Google", "The provider's name on the sign-in button.")
    github_client: str | None = setting(
        None, "The client ID from GitHub. Register the callback URL <base_url>/dashboard/sign-in/with/github/back.", example="Ov23li…"
    )
    github_secret: Path | None = setting(None, "The file with GitHub's client secret.", example="/etc/mailsvc/github.secret")
    github_url: str = setting("https://github.com", "The URL of GitHub or of a GitHub Enterprise Server.", check=_url)
    github_api: str = setting("https://api.github.com", "The URL of its API. For an Enterprise Server: https://HOST/api/v3.", check=_url)


def secret_of(path: Path | None, key: str) -> str:
    """Reads a client secret from its file. Raises SettingsError."""
    if path is None:
        raise SettingsError(f"The setting sign_in.{key} is missing; it is required with the client ID.")
    try:
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"The file {path} (sign_in.{key}) cannot be read: {reason}.") from None
    if not secret:
        raise SettingsError(f"The file {path} (sign_in.{key}) is empty.")
    return secret
