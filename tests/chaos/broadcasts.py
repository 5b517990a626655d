"""A broadcast while the daemon and Postgres are killed: each contact has one row and gets the email, and what arrives twice is bounded."""

from __future__ import annotations

import random
import time
from collections import Counter

from tests.broadcasts.many import fill
from tests.chaos.experiments import CONNECTIONS
from tests.chaos.ground import Figures, ground, sink, until

_ROWS = "SELECT count(*), count(DISTINCT contact_id) FROM {}"
_COUNTED = "SELECT type, sum(count)::int FROM broadcast_counts GROUP BY type"


def killed(contacts: int, kills: int, cuts: int) -> Figures:
    """T26: kill -9 of the daemon `kills` times and the end of Postgres `cuts` times, at random moments from the first email to the last."""
    figures, began = Figures("T26 a broadcast, daemon and Postgres killed"), time.monotonic()
    moments = random.Random(8058)
    faults = ["daemon"] * kills + ["postgres"] * cuts
    moments.shuffle(faults)
    with sink() as target, ground() as place:
        delivery = {"routes": {"*": f"smtp://127.0.0.1:{target.port}"}, "connections_max": CONNECTIONS}
        daemon = place.daemon({"delivery": delivery, "broadcasts": {"ahead": max(500, contacts // 20)}})
        key, sender = str(daemon.facts["api_key"]), f"news@{daemon.facts['domain']}"
        segment = daemon.call("POST", "/segments", {"name": "All"}, {}, key).body["id"]
        fill(place.dsn, segment, contacts)
        content = {"segment_id": segment, "from": sender, "subject": "News", "text": "Hi {{{FIRST_NAME}}}", "send": True}
        broadcast = daemon.call("POST", "/broadcasts", content, {}, key).body["id"]

        def progress() -> str:
            return f"{len(target.times)} of {contacts} arrived; what waits: {place.summary()}"

        for number, fault in enumerate(faults):
            arrived = contacts * number // len(faults)
            until(lambda arrived=arrived: len(target.times) >= arrived, 60 + contacts / 50, progress)
            time.sleep(moments.uniform(0.1, 0.6))
            if fault == "daemon":
                daemon.kill()
                daemon.start()
            else:
                place.end_postgres()
                place.start_postgres()
        until(lambda: len(target.times) >= contacts, 120 + contacts / 50, progress)
        until(lambda: daemon.call("GET", f"/broadcasts/{broadcast}", None, {}, key).body.get("status") == "sent", 60, "the end")
        until(lambda: not place.waiting() and not place.rows("SELECT FROM fresh_events LIMIT 1"), 120, progress)
        sent = {address: [] for address in (f"c{n}@example.net" for n in range(1, contacts + 1))}  # type: dict[str, list[bytes]]
        for mail in target.received:
            sent[mail.recipients[0]].append(mail.raw)
        times = Counter(len(copies) for copies in sent.values())
        figures.accepted, figures.delivered, figures.lost = contacts, contacts - times[0], times[0]
        figures.duplicates = sum((count - 1) * those for count, those in times.items() if count)
        assert place.rows(_ROWS.format("broadcast_recipients")) == [(contacts, contacts)]
        assert place.rows(_ROWS.format("emails")) == [(contacts, contacts)]
        counted = dict(place.rows(_COUNTED))
        assert (counted["email.sent"], counted["email.delivered"]) == (contacts, contacts), counted
    allowed = len(faults) * CONNECTIONS
    figures.notes = {"kills": kills, "ends of Postgres": cuts, "duplicates allowed": allowed}
    assert figures.lost == 0
    assert figures.duplicates <= allowed
    assert all(len(set(copies)) == 1 for copies in sent.values()), "a repeated email has other bytes"
    figures.seconds = time.monotonic() - began
    return figures
