"""The command line of `twistd mailsvc`: reads the settings, and refuses a second development server in the same folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from twisted.python.usage import Options as UsageOptions

from mailsvc.runtime import one_server
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings

T = TypeVar("T")


class Options(UsageOptions):
    """Reads the settings; a mistake in them ends the process with a sentence about it."""

    longdesc = "Transactional email delivery: accepted over HTTP and SMTP, delivered over SMTP, stored in Postgres."
    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", os.environ.get("MAILSVC_CONFIG"), "The settings file (TOML). etc/mailsvc.toml explains all settings."],
        ["cells", None, "", "Run one process for each of these cells (separated by commas), with its settings in [cells.NAME]."],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        ["share-cells", None, "Run the processes of this machine's share of the cells in [cells], which it agrees with the other machines."]
    ]

    def postOptions(self) -> None:
        if self["config"] is None:
            sys.exit("mailsvc cannot start. The settings file is missing: twistd mailsvc --config FILE")
        try:
            self["by cell"] = self._cells()
            settings = self["settings"] = next(iter(self["by cell"].values()), None) or loading.load(Path(self["config"]))
            if settings.development.dev_file is not None:
                self["lock"] = one_server.claim(settings.development.dev_file)  # before anything is logged or opened
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")
        except one_server.AlreadyRunning as error:
            sys.exit(str(error))

    def checked(self, make: Callable[[], T]) -> T:
        """What this makes from the settings; a mistake that it finds in them ends the process with a sentence."""
        try:
            return make()
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")

    def _cells(self) -> dict[str, Settings]:
        """The settings of each cell whose processes are to be run; none for a daemon."""
        chosen = [cell.strip() for cell in self["cells"].split(",") if cell.strip()]
        if chosen and self["share-cells"]:
            raise SettingsError("Use either --cells or --share-cells.")
        return loading.load_cells(Path(self["config"]), chosen) if chosen or self["share-cells"] else {}
