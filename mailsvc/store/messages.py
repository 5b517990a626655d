"""The exact bytes of an email: read for sending and for showing, never rebuilt."""

from __future__ import annotations

import attrs


@attrs.frozen
class StoredMessage:
    """`signature` are the DKIM-Signature fields of the first attempt, None when none was made yet; they precede `body`."""

    signature: bytes | None
    body: bytes = attrs.field(repr=False)
