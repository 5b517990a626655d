"""A nameserver in a thread. The queried name selects how it misbehaves, until it is healed."""

from __future__ import annotations

import socket
import threading
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class BadDns:
    """goodN, servfailN, silentN, nothingN (NXDOMAIN) and nullN (null MX) .example; all hosts are on 127.0.0.1."""

    def __init__(self, domains: int) -> None:
        self.domains = domains
        self._healed = threading.Event()
        self._wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._wire.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._wire.getsockname()[1]}"

    def __enter__(self) -> BadDns:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def heal(self) -> None:
        self._healed.set()

    def _serve(self) -> None:
        while True:
            try:
                packet, peer = self._wire.recvfrom(4096)
            except OSError:
                return
            answer = self._answer(dns.message.from_wire(packet))
            if answer is not None:
                self._wire.sendto(answer.to_wire(), peer)

    def _answer(self, query: Any) -> Any:
        question = query.question[0]
        name, kind = question.name.to_text().lower(), dns.rdatatype.to_text(question.rdtype)
        response = dns.message.make_response(query)
        if name.startswith("mx.") and kind == "A":
            response.answer.append(dns.rrset.from_text(name, 300, "IN", "A", "127.0.0.1"))
        elif name.startswith("nothing"):
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif kind == "MX" and name.startswith("null"):
            response.answer.append(dns.rrset.from_text(name, 300, "IN", "MX", "0 ."))
        elif name.startswith(("servfail", "silent")) and not self._healed.is_set():
            if name.startswith("silent"):
                return None
            response.set_rcode(dns.rcode.SERVFAIL)
        elif kind == "MX":
            response.answer.append(dns.rrset.from_text(name, 300, "IN", "MX", f"10 mx.{name}"))
        return response
