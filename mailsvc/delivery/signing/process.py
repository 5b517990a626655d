"""Signs hashes with private keys: the program of a child process (child.py starts it).

It reads keys and hashes from a socket, its standard input, and writes the signatures in the same order. It has neither settings nor other
secrets, and ends when the daemon closes the socket, or is gone.
"""

from __future__ import annotations

import resource
import signal
import socket
from contextlib import suppress

from mailsvc.delivery.signing.frames import READY, FrameReader, NewKey, framed, read
from mailsvc.mail.authentication import dkim
from mailsvc.mail.authentication.dkim import SigningKey

_READ = 64 * 1024  # bytes at a time
_TOGETHER = 32  # signatures that are made before they are written


def serve(connection: socket.socket) -> None:
    keys: dict[int, SigningKey] = {}
    reader = FrameReader()
    connection.sendall(framed(READY))
    while data := connection.recv(_READ):
        hashes: list[tuple[SigningKey, bytes]] = []
        for frame in map(read, reader.feed(data)):
            if isinstance(frame, NewKey):
                keys[frame.number] = dkim.load_key(frame.algorithm, frame.der)
            else:
                hashes += [(keys[number], digest) for number, digest in frame.each]
        for at in range(0, len(hashes), _TOGETHER):
            connection.sendall(b"".join(map(framed, dkim.signatures(hashes[at : at + _TOGETHER]))))


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the daemon gets them too, and needs signatures until it has stopped
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory with private keys is not written to a file
    with socket.socket(fileno=0) as connection, suppress(ConnectionError):  # if the daemon is gone
        serve(connection)


if __name__ == "__main__":
    main()
