"""Reads etc/shaping.toml at the start. What it means: delivery/shaping."""

from __future__ import annotations

from pathlib import Path

from mailsvc import configfile
from mailsvc.configfile import SettingsError
from mailsvc.delivery import shaping
from mailsvc.delivery.shaping import Shaping


def load(path: Path) -> Shaping:
    """The rules, or a SettingsError that names the setting."""
    try:
        return shaping.read(configfile.read(path))
    except SettingsError as error:
        raise SettingsError(f"The setting delivery.shaping names a file with rules for providers. {error}") from None
    except shaping.BadRules as error:
        raise SettingsError(f"The rules of delivery.shaping, {path}, are not usable. {error}") from None
