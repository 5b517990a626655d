"""The envelope that an attempt sends: the addresses of its recipients, and the parameters that were stored with the email."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.envelope import Envelope
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.queue.claims import Leased


def envelope_of(
    stored: StoredEnvelope, return_path: Callable[[], str], recipients: Sequence[Leased], size: int, *, eight_bit: bool
) -> Envelope:
    """A report has the null sender, so that nothing is returned for it."""
    numbers = [leased.recipient for leased in recipients] if stored.notify or stored.orcpt else []
    return Envelope(
        "" if stored.report else return_path(),
        tuple([leased.address for leased in recipients]),
        size,
        eight_bit,
        smtputf8=stored.smtputf8 or (stored.utf8_header and eight_bit),  # 6531 §3.4; a copy in seven bits needs no SMTPUTF8
        ret=stored.ret,
        envid=stored.envid,
        notify=tuple(stored.notify[n] for n in numbers) if stored.notify else (),
        originals=tuple(stored.orcpt[n] for n in numbers) if stored.orcpt else (),
    )


def needs_copy(capabilities: Capabilities | None, envelope: StoredEnvelope) -> bool:
    """Whether this server can only accept an 8-bit message in seven bits."""
    if capabilities is None or envelope.smtputf8:
        return False
    return not capabilities.eight_bit or (envelope.utf8_header and not capabilities.smtputf8)
