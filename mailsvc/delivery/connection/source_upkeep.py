"""Periodic work for source addresses: shares them with other processes, queries the block lists, ends waits.

What follows from what is known: admission/sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.connection.source_state import SourceState
from mailsvc.net import block_lists
from mailsvc.net.dns import Resolver, reversed_name
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.queue.sources import SourceTable

_REFRESH, _CHECK = 10.0, 600.0  # seconds between two calls of `refresh` and of `check_lists`
_ANNOUNCE, _FORGET = 60.0, 86400.0  # seconds


class SourceUpkeep:
    """`lists`: DNS block lists that make a source rest. `state` is for metrics."""

    log = Logger()

    def __init__(self, clock: Any, state: SourceState, table: SourceTable, holds: Holds, resolver: Resolver, lists: Sequence[str]) -> None:
        self._clock, self.state, self._table, self._holds, self._resolver, self._lists = clock, state, table, holds, resolver, lists
        self._due: dict[str, float] = {}
        self._lacking: dict[str, set[bool]] = {}  # by what waited: the families without a source when its wait was ended; True: IPv6

    async def start(self, opened: Opened) -> None:
        """Begin, before the first mail is sent."""
        opened.add("what sources did not send", self.state.close)
        await self.refresh()
        opened.add("source addresses", every(self._clock, _REFRESH, "reading the source addresses", self.refresh))
        opened.add("block lists", every(self._clock, _CHECK, "asking the block lists", self.check_lists))

    async def refresh(self) -> None:
        """Read what other processes know, and end waits for sources that may send again."""
        if self._is_due("announce", _ANNOUNCE):
            await self.state.announce()
        if self._is_due("forget", _FORGET):
            await self._table.forget(utc(self._clock))
        await self.state.refresh()
        if self._is_due("lacking", _FORGET):
            self._lacking.clear()
        for name in self._holds.waiting_for_source:
            self._end_wait(name)

    def _end_wait(self, name: str) -> None:
        """If a source may send again. If mail has waited again since then, its servers have only addresses of the other family."""
        found = {six: self.state.decide(name, six) for six in (False, True)}
        admitted = {six for six, decision in found.items() if decision.admitted or decision.reason == "other process"}
        lacking = {six for six, decision in found.items() if six not in admitted and decision.reason != "no source"}
        if not admitted:
            self._lacking.pop(name, None)
        elif not self._lacking.get(name) or admitted & self._lacking[name]:
            self._lacking[name] = lacking
            self._holds.end_wait(name)

    async def check_lists(self) -> None:
        """Ask the block lists about own addresses that are due. A listed one gets no connections until it is removed from the list."""
        if not self._lists and not self.state.listed:
            return
        addresses = [each.address for each in self.state.own if ip_address(each.address).is_global]
        for address, before in (await self._table.take_checks(addresses, utc(self._clock))).items():
            await self._check(address, before)
        await self.state.refresh()

    async def _check(self, address: str, before: Sequence[str]) -> None:
        found, answered = await block_lists.look_up(self._resolver, reversed_name(address), self._lists)
        given_up = [zone for zone in found if await block_lists.lists_everything(self._resolver, zone)]
        silent = [zone for zone in self._lists if zone not in answered]
        listed = sorted({*found, *(zone for zone in before if zone in silent)} - {*given_up})
        await self._table.checked(address, listed, utc(self._clock), complete=not silent)
        if listed and not before:
            self.log.error(
                "The source address {address} is on {lists}: it sends no mail until it is removed. Find the reason on the list's website, "
                "fix it, and request removal.", address=address, lists=", ".join(listed)
            )  # fmt: skip
        elif before and not listed:
            self.log.info("The source address {address} is no longer on a block list and sends mail again.", address=address)
        for zone in given_up:
            self.log.warn("The block list {zone} lists every address. Remove it from delivery.block_lists.", zone=zone)

    def _is_due(self, what: str, seconds: float) -> bool:
        now = self._clock.seconds()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + seconds
        return True
