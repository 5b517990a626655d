"""Lets one development server run in a folder: a second start reports where the first one listens.

Only for servers with a `development.dev_file`. In production, any number of processes may use one database.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path

from mailsvc.settings.reader import SettingsError


class AlreadyRunning(Exception):
    """Another process holds the folder. The message says where it listens and how to stop it."""


def claim(dev_file: Path) -> int:
    """Lock the folder of `dev_file` for as long as this process runs. Returns the locked file's descriptor, which must stay open.

    The system releases the lock however the process ends. Raises AlreadyRunning, or SettingsError if the folder is not writable.
    """
    try:
        dev_file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(dev_file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(
            f"The folder {dev_file.parent} cannot be written ({error.strerror}): make it writable for your user, "
            "or copy the project to a folder of your own and start mailsvc there."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise AlreadyRunning(_where(dev_file, process)) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _where(dev_file: Path, process: str) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it is written last, and removed first
        return f"mailsvc is already running at {json.loads(dev_file.read_text('utf-8'))['http']}. To stop it: kill {process}"
    return f"mailsvc is already starting or stopping in this folder, as process {process}. Wait a few seconds, then try again."
