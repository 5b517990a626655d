"""Closing a connection to a server. A reset is an error to the server, so it only gets one if its response is not complete."""

from __future__ import annotations

from typing import Any

SECONDS = 5.0  # for a server that does not read


def close(transport: Any, clock: Any, *, complete: bool) -> None:
    """Close the connection: after what is being sent if the response is `complete`, otherwise, or if that takes too long, by force.

    Within TLS, an alert goes first (9112 §9.8). The alert of the server is not awaited, because it may never come.
    """
    if not complete:
        transport.abortConnection()
        return
    below = getattr(transport, "transport", None)  # of TLS
    transport.loseConnection()
    if below is not None:
        below.loseConnection()
    clock.callLater(SECONDS, (transport if below is None else below).abortConnection)
