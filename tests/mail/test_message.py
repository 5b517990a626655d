from mailsvc.mail.message import PIECE, Message


def test_pieces() -> None:
    for size in (0, 1, PIECE, PIECE + 1, 3 * PIECE):
        message = Message(bytes(size))
        pieces = list(message)
        assert len(message) == size
        assert all(0 < len(piece) <= 256_000 for piece in pieces)
        assert b"".join(pieces) == bytes(message)
