"""A process sends mail of its own region only."""

from __future__ import annotations

import attrs

from mailsvc.delivery.message_loader import Origin
from mailsvc.store.cache import MAX_AGE
from tests.delivery.fakes import DeliveryRig


def test_new_mail_of_another_region_is_left_to_its_processes() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)  # the route is known from now on
    reserved = {region: rig.delivery.handoff.reserve("example.com", 10, False, region=region) for region in (None, "eu", "us")}
    assert {region: each.leased for region, each in reserved.items()} == {None: True, "eu": True, "us": False}
    assert len({each.destination for each in reserved.values()}) == 1


def test_mail_whose_domain_has_moved_is_given_back_unsent() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    origin, region = rig.sending.origin, ["us"]

    async def of_region(transaction: object) -> Origin:
        return attrs.evolve(await origin(transaction), region=region[0])

    rig.sending.origin = of_region  # type: ignore[method-assign]
    rig.store.add(1, "bob@example.com")
    rig.start().run(1)
    [row] = rig.store.rows.values()
    assert (row.lease, server.mails, rig.store.settled) == (None, [], [])
    assert 0 < (row.next_at - rig.store.now).total_seconds() + 1 <= MAX_AGE + 1, "this process may have been wrong, for so long at most"
    region[0] = "eu"
    rig.run(5)
    assert len(server.mails) == 1
