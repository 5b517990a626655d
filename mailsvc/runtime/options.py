"""The command line of `twistd mailsvc`: reads the settings, and refuses a second development server in the same folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from twisted.python.usage import Options as UsageOptions

from mailsvc.runtime import one_server
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
            settings = self["settings"] = loading.load(Path(self["config"]))
            if settings.development.dev_file is not None:
                self["lock"] = one_server.claim(settings.development.dev_file)  # before anything is logged or opened
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")
        except one_server.AlreadyRunning as error:
            sys.exit(str(error))
