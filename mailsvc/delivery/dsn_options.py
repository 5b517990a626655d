"""What the next server is told of a mail beyond its addresses: what its submitter asked for, as the envelope was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mailsvc.smtp.client.envelope import Envelope
from mailsvc.store.queue.claims import Leased


@attrs.frozen
class DsnOptions:
    """`notify` and `originals` are by recipient number; empty: nobody asked."""

    null_sender: bool = False  # a report on another mail: nothing is to come back (3464 §2)
    smtputf8: bool = False
    ret: Any = None
    envid: str | None = None
    notify: tuple[str | None, ...] = ()
    originals: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None) -> DsnOptions:
        if not kept:
            return NOTHING
        return cls(
            null_sender=kept.get("report") is True,
            smtputf8=kept.get("smtputf8") is True,
            ret=kept.get("ret"),
            envid=kept.get("envid"),
            notify=tuple(kept.get("notify") or ()),
            originals=tuple(kept.get("orcpt") or ()),
        )

    def envelope(self, return_path: str, recipients: Sequence[Leased], size: int, *, eight_bit: bool) -> Envelope:
        numbers = [leased.recipient for leased in recipients] if self.notify or self.originals else []
        return Envelope(
            "" if self.null_sender else return_path,
            tuple([leased.address for leased in recipients]),
            size,
            eight_bit,
            smtputf8=self.smtputf8,
            ret=self.ret,
            envid=self.envid,
            notify=tuple(self.notify[n] for n in numbers) if self.notify else (),
            originals=tuple(self.originals[n] for n in numbers) if self.originals else (),
        )


NOTHING = DsnOptions()
