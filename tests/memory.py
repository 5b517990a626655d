"""For servers whose data need not outlive the machine: a folder in memory, and settings without durability."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOM = 6 << 30  # bytes that must be free there
# Small buffers, because each process of a server unmaps them when it ends.
QUICK = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}


def in_memory() -> str | None:
    """A folder in memory, or None if there is no room.

    A database is a thousand files, and on a disk most of the time goes into creating them.
    """
    shared = Path(os.environ.get("MAILSVC_TEST_MEMORY", "/dev/shm"))
    return str(shared) if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= ROOM else None
