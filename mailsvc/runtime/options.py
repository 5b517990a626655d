"""The command line of `twistd mailsvc`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from twisted.python.usage import Options as UsageOptions

from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError


class Options(UsageOptions):
    """Reads the settings; a mistake in them ends the process with a sentence about it."""

    longdesc = "Transactional email delivery: accepted over HTTP and SMTP, delivered over SMTP, stored in Postgres."
    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", os.environ.get("MAILSVC_CONFIG"), "The settings file (TOML). etc/mailsvc.toml explains all settings."]
    ]

    def postOptions(self) -> None:
        if self["config"] is None:
            sys.exit("mailsvc cannot start. The settings file is missing: twistd mailsvc --config FILE")
        try:
            self["settings"] = loading.load(Path(self["config"]))
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")
