"""The Unix sockets of processes that deliver: their names, and who may use them.

They are in Linux' abstract namespace, so no file is left behind. Anybody on the machine could listen or connect there; therefore both
ends check that the other one runs as the same user.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import sys
from typing import Any

from mailsvc.delivery.passing.frames import VERSION

SUPPORTED = sys.platform == "linux"
BUFFER = 4 << 20  # bytes that may wait in the socket, if the system allows so many (net.core.wmem_max)
# Bytes read in one turn of the reactor. A turn takes long while there is much to do, and a message should not arrive after its claim.
READ = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # process, user and group (unix(7), SO_PEERCRED)


def name(secret: bytes, process: int) -> str:
    """The address of a process's socket. The secret of the installation tells apart several on one machine."""
    return f"\0mailsvc-{VERSION}-{hmac.digest(secret, b'%d' % process, 'sha256').hex()[:32]}"


def same_user(transport: Any) -> bool:
    """Whether the other end of a connection runs as the user of this process."""
    found = transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.geteuid())
