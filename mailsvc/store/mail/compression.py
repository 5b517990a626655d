"""The format of compressed messages: one LZ4 block. Pure. Which messages are compressed: store/mail/inserts.

Postgres then writes less to the table and to the write-ahead log. A block does not say how long the message is; the table emails does.
"""

from __future__ import annotations

import lz4.block

from mailsvc.store.postgres.errors import Damaged

SMALLEST = 512  # bytes; below that, there is nothing to gain


def compressed(message: bytes) -> bytes | None:
    """None if the message would not become at least an eighth smaller, as with attachments that are compressed already."""
    if len(message) < SMALLEST:
        return None
    block: bytes = lz4.block.compress(message, store_size=False)
    return block if len(block) <= len(message) - len(message) // 8 else None


def original(block: bytes, size: int) -> bytes:
    """The message that was compressed, of `size` bytes. Raises Damaged."""
    try:
        message: bytes = lz4.block.decompress(block, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        raise Damaged("a compressed message is damaged") from None
    if len(message) != size:
        raise Damaged("a compressed message is incomplete")
    return message
