"""Where servers of the tests keep data that need not outlive the machine: in memory, if it has room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOM = 6 << 30  # bytes that must be free there


def in_memory() -> str | None:
    """A folder in memory. A database is a thousand files, and on a disk most of the time goes into creating them."""
    shared = Path(os.environ.get("MAILSVC_TEST_MEMORY", "/dev/shm"))
    return str(shared) if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= ROOM else None
