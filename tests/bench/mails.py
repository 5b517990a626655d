"""The messages of SMTP loads: text and HTML like transactional mail, of about a given size, with CRLF."""

from __future__ import annotations

import random
from collections.abc import Callable

WORDS = """invoice order shipped account password reset confirm your the a of to for delivery payment thanks please click here see more
details below""".split()


def mail(sender: str, size: int) -> bytes:
    """Returns the same message for the same arguments."""
    chance = random.Random(7)
    domain = sender.partition("@")[2]
    head = (
        f"From: Acme Billing <{sender}>\r\nTo: Customer <customer@example.test>\r\nSubject: Your order 12345 has shipped\r\n"
        f"Date: Fri, 20 Nov 2026 12:00:00 +0000\r\nMessage-ID: <bench-0001@{domain}>\r\nReply-To: support@{domain}\r\n"
        f"List-Unsubscribe: <https://{domain}/u/abc>\r\nMIME-Version: 1.0\r\n"
        'Content-Type: multipart/alternative; boundary="=-alt-77"\r\n\r\n'
    )
    rest = size - len(head) - 300
    text = _lines(rest // 4, lambda: " ".join(chance.choice(WORDS) for _ in range(10)))
    cell = '<tr><td style=3D"padding:4px">{}</td><td>{}</td></tr>'
    html = _lines(rest * 3 // 4, lambda: cell.format(chance.choice(WORDS), chance.choice(WORDS)))
    body = (
        f"--=-alt-77\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}\r\n"
        "--=-alt-77\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        f"{html}\r\n--=-alt-77--\r\n"
    )
    return (head + body).encode()


def _lines(size: int, line: Callable[[], str]) -> str:
    lines: list[str] = []
    while size > 0:
        lines.append(line())
        size -= len(lines[-1]) + 2
    return "\r\n".join(lines)
