"""The experiments, each with its size. They return figures and assert what must hold."""

from __future__ import annotations

import random
import signal
import smtplib
import statistics
import time
from typing import Any

import pytest

from tests.chaos.baddns import BadDns
from tests.chaos.ground import Client, Figures, ground, in_background, p95, postfix_sink, sink, until
from tests.end_to_end.relay_rig import connect
from tests.end_to_end.rig import free_port

CONNECTIONS = 5
ROUNDS = 5


def _all(port: int, **more: object) -> dict[str, Any]:
    return {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "connections_max": CONNECTIONS, **more}}


def _finish(figures: Figures, place: Any, sink: Any, ids: list[str], seconds: float) -> Figures:
    """Waits until nothing has arrived for `seconds`, and counts."""
    wanted = set(ids)
    while missing := wanted - sink.ids():
        left = len(missing)
        until(
            lambda left=left: len(wanted - sink.ids()) < left,
            seconds,
            lambda left=left: f"{figures.name}: the arrival of {left} more; what waits: {place.summary()}",
        )
    until(lambda: not place.waiting(), seconds, f"{figures.name}: an empty queue")
    figures.accepted, figures.delivered = len(wanted), len(wanted & sink.ids())
    figures.duplicates, figures.lost = sink.duplicates(), len(wanted - sink.ids())
    figures.waiting = place.waiting()
    assert place.ended(wanted) == wanted, "each has one end"
    return figures


def killed_daemon(emails: int, kills: int) -> Figures:
    """T1: kill -9 of the daemon at random moments."""
    figures, began = Figures("T1 kill -9 of the daemon"), time.monotonic()
    with sink() as target, ground() as place:
        daemon = place.daemon(_all(target.port))
        client = Client(daemon)
        sending = in_background(lambda: [client.batch(f"c{n}-{m}@example.net" for m in range(20)) for n in range(emails // 20)])
        moments = random.Random(5321)
        for _ in range(kills):
            time.sleep(moments.uniform(0.2, 1.5))
            daemon.kill()
            daemon.start()
        sending.join(300)
        assert not sending.is_alive()
        _finish(figures, place, target, client.ids, 120)
    figures.notes = {"kills": kills, "duplicates allowed": kills * CONNECTIONS}
    assert figures.lost == 0
    assert figures.duplicates <= kills * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def killed_postgres(emails: int, kills: int) -> Figures:
    """T2: Postgres is killed at random moments and recovers."""
    figures, began = Figures("T2 Postgres ended at once"), time.monotonic()
    with sink() as target, ground() as place:
        client = Client(place.daemon(_all(target.port)))
        sending = in_background(lambda: [client.batch(f"c{n}-{m}@example.net" for m in range(20)) for n in range(emails // 20)])
        moments = random.Random(2034)
        for _ in range(kills):
            time.sleep(moments.uniform(0.3, 1.5))
            place.end_postgres()
            place.start_postgres()
        sending.join(300)
        assert not sending.is_alive()
        _finish(figures, place, target, client.ids, 120)
    assert figures.lost == 0
    # The process lives, so it knows what was answered: only an outcome whose commit is unknown goes out twice.
    assert figures.duplicates <= kills * CONNECTIONS
    figures.notes, figures.seconds = {"kills": kills}, time.monotonic() - began
    return figures


def restarted_postgres(emails: int, away: float) -> Figures:
    """T4: the database is down for a while: 503 with retry-after, 451 over SMTP, and the backlog drains afterwards."""
    figures, began = Figures("T4 the database is down"), time.monotonic()
    with sink() as target, ground() as place:
        relay = {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(place.folder / "tls")}
        daemon = place.daemon({**_all(target.port), "smtp": relay})
        client = Client(daemon)
        with connect(daemon) as session:
            client.batch(f"a{n}@example.net" for n in range(emails))
            place.server.stop_blocking()
            gone = time.monotonic()
            thread = in_background(
                lambda: client.refused.append(daemon.call("POST", "/emails", client.email("x@example.net"), key=client.key))
            )
            reply = client.submit(session, "while-away@example.net")
            assert (reply[0], reply[1][:6]) == (451, b"4.3.0 "), reply
            thread.join(60)
            assert not thread.is_alive() and client.refused, "the API did not answer"
            for refused in client.refused:
                headers = {name.lower(): value for name, value in refused.headers.items()}
                assert refused.status == 503 and int(headers["retry-after"]) > 0, refused
            with connect(daemon, login=False) as late, pytest.raises(smtplib.SMTPAuthenticationError) as failed:
                late.login(daemon.facts["smtp_username"], client.key)
            assert failed.value.smtp_code == 454, failed.value
            time.sleep(max(0.0, away - (time.monotonic() - gone)))
            figures.notes["waited meanwhile"] = len(set(client.ids) - target.ids())
            place.start_postgres()
            back = time.monotonic()
            until(lambda: client.submit(session, "again@example.net")[0] == 250, 60, "the acceptance over SMTP")
            client.batch(f"b{n}@example.net" for n in range(20))
            figures.notes["accepts again after"] = f"{time.monotonic() - back:.1f} s"
        _finish(figures, place, target, client.ids, 120)
        figures.notes["backlog drained after"] = f"{time.monotonic() - back:.1f} s"
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def lost_replies(emails: int) -> Figures:
    """T5: the connection ends after the final dot, without a reply."""
    figures, began = Figures("T5 no reply after the final dot"), time.monotonic()
    with ground() as place:
        port = free_port()
        daemon = place.daemon(_all(port, uncertain_seconds=2, hold_first=1, hold_longest=2, retry=[1]))
        client = Client(daemon)
        with postfix_sink("-q", ".", port=port):
            client.batch(f"u{n}@example.net" for n in range(emails))
            until(lambda: place.rows("SELECT count(*) FROM queue WHERE status = 'uncertain' AND attempts > 0")[0][0] >= 1, 60)
            [(uncertain,)] = place.rows("SELECT count(*) FROM events WHERE type = 'email.delivery_delayed'")
            [(hosts,)] = place.rows("SELECT count(*) FROM queue WHERE status = 'uncertain' AND host IS NULL")
            assert hosts == 0
        with sink(port) as target:
            _finish(figures, place, target, client.ids, 180)
            ids = {mail.message_id for mail in target.received}
            bodies = {mail.raw for mail in target.received}
        figures.notes = {"reported as delayed at first": uncertain, "Message-IDs": len(ids)}
        assert len(ids) == len(bodies) == emails
    figures.seconds = time.monotonic() - began
    return figures


def tarpits(domains: int, backlog: int, healthy: int) -> Figures:
    """T6 and T14: many domains whose servers hardly answer, a long queue for a dead one, and a healthy one beside them.

    Measured in turns with a process that has no such trouble, on the same machine at the same time.
    """
    figures, began = Figures("T6, T14 tarpits and a dead domain"), time.monotonic()
    with (
        sink() as target,
        sink() as calm,
        postfix_sink("-W", ".:300", "-w", "60", every_address=True) as slow,
        ground() as place,
        ground() as elsewhere,
    ):
        routes = {f"slow{n}.example": f"smtp://127.1.{n // 250}.{n % 250 + 1}:{slow}" for n in range(domains)}
        routes |= {"dead.example": f"smtp://127.0.0.1:{free_port()}", "*": f"smtp://127.0.0.1:{target.port}"}
        daemon = place.daemon({"delivery": {"routes": routes, "hold_first": 60, "retry": [60, 300]}})
        client, other = Client(daemon), Client(elsewhere.daemon({"delivery": {"routes": {"*": f"smtp://127.0.0.1:{calm.port}"}}}))
        _latencies(client, target, 1)
        _latencies(other, calm, 1)
        client.batch([f"x@slow{n}.example" for n in range(domains)] + [f"x{n}@dead.example" for n in range(backlog)])
        time.sleep(3)
        share = healthy // ROUNDS
        rounds = [(p95(_latencies(other, calm, share)), p95(_latencies(client, target, share))) for _ in range(ROUNDS)]
        without, beside = map(statistics.median, zip(*rounds, strict=True))
        until(lambda: place.waiting() == len(client.ids) - len(target.ids()), 60, "the writing down of what arrived")
        figures.accepted, figures.delivered, figures.waiting = len(client.ids), len(target.ids()), place.waiting()
        figures.lost = figures.accepted - figures.delivered - figures.waiting
        figures.notes = {
            "tarpits": domains,
            "dead backlog": backlog,
            "healthy p95 ms without": round(without * 1000),
            "healthy p95 ms": round(beside * 1000),
            "ratio": round(beside / without, 2),
        }
        assert set(client.sent_at) <= target.ids()
        daemon.kill()  # what hangs there would be waited for
    assert figures.lost == 0
    figures.seconds = time.monotonic() - began
    return figures


def _latencies(client: Client, target: Any, count: int) -> list[float]:
    """Measures the time from request to arrival, one email after the other."""
    ids = []
    for n in range(count):
        ids.append(client.one(f"h{n}@example.net"))
        time.sleep(0.01)
    until(lambda: set(ids) <= set(target.times), 60, "the healthy mail's arrival")
    return [target.times[each] - client.sent_at[each] for each in ids]


def refusals(emails: int, seconds: float) -> Figures:
    """T7: 4yz at RCPT, 421 anywhere, greetings refused: the schedule is kept and nothing is tried in a loop."""
    figures, began = Figures("T7 storms of refusals"), time.monotonic()
    with (
        postfix_sink("-r", "RCPT") as later,
        postfix_sink("-q", "MAIL") as closing,
        postfix_sink("-f", "CONNECT") as refusing,
        ground() as place,
    ):
        routes = {
            "later.example": f"smtp://127.0.0.1:{later}",
            "closing.example": f"smtp://127.0.0.1:{closing}",
            "refusing.example": f"smtp://127.0.0.1:{refusing}",
        }
        changes = {"routes": routes, "retry": [2, 4], "greylist_seconds": 2, "hold_first": 2, "hold_longest": 4, "retry_jitter": 0}
        client = Client(place.daemon({"delivery": changes}))
        client.batch(f"x{n}@{('later', 'closing', 'refusing')[n % 3]}.example" for n in range(emails))
        time.sleep(seconds)
        [(attempts, most)] = place.rows(
            "SELECT count(*), coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM attempts GROUP BY email_id) a"
        )
        [(tried,)] = place.rows("SELECT count(*) FROM attempts")
        figures.accepted, figures.waiting = len(client.ids), place.waiting()
        figures.lost = figures.accepted - figures.waiting
        figures.notes = {"emails tried": attempts, "attempts": tried, "most of one email": most}
        assert most <= 2 + seconds / 3
        assert figures.lost == 0
    figures.seconds = time.monotonic() - began
    return figures


def bad_dns(domains: int) -> Figures:
    """T9: nameservers that fail, do not answer, or answer NXDOMAIN; and one that recovers."""
    figures, began = Figures("T9 DNS that fails"), time.monotonic()
    with sink() as target, BadDns(domains) as names, ground() as place:
        changes = {
            "nameservers": [names.address],
            "port": target.port,
            "dns_seconds": 2,
            "retry": [1, 2],
            "hold_first": 1,
            "hold_longest": 2,
        }
        client = Client(place.daemon({"delivery": changes}))
        kinds = ("good", "servfail", "silent", "nothing", "null")
        client.batch(f"x@{kind}{n}.example" for n in range(domains) for kind in kinds)
        until(lambda: len(target.ids()) == domains, 60, "the arrival of what DNS is good for")
        until(lambda: len(place.rows("SELECT 1 FROM events WHERE type = 'email.bounced'")) == 2 * domains, 60, "the end of what cannot be")

        until(lambda: place.waiting() == 2 * domains, 60, "the writing down of what arrived")
        figures.notes = {"bounced at once": 2 * domains, "waited for DNS": 2 * domains}
        names.heal()
        until(lambda: len(target.ids()) == 3 * domains, 120, "the arrival of the rest, once DNS answers")
        until(lambda: place.waiting() == 0, 60, "the writing down of that")
        figures.accepted, figures.delivered, figures.waiting = len(client.ids), len(target.ids()), place.waiting()
        figures.duplicates = target.duplicates()
        figures.lost = figures.accepted - figures.delivered - 2 * domains - figures.waiting
    assert (figures.lost, figures.waiting) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def stopped_process(emails: int, stop_seconds: float) -> Figures:
    """T12: one of two processes is suspended for a long time while it sends, then continued."""
    figures, began = Figures("T12 a process stopped and continued"), time.monotonic()
    with sink() as target, ground() as place:
        first = place.daemon(_all(target.port))
        client = Client(first)
        client.batch((f"a{n}@example.net" for n in range(emails)), "one")
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        other = Client(place.daemon(_all(target.port)))
        other.batch((f"b{n}@example.net" for n in range(20)), "two")
        wanted = set(client.ids) | set(other.ids)
        # Until the queue is empty, the other process may be sending once more what arrived just before the first one stopped.
        until(lambda: wanted <= target.ids() and not place.waiting(), 100, "the taking over of leases")
        figures.notes["taken over and delivered after"] = f"{time.monotonic() - stopped:.0f} s"
        time.sleep(max(0.0, stop_seconds - (time.monotonic() - stopped)))
        before = len(target.received)
        first.process.send_signal(signal.SIGCONT)
        time.sleep(3)
        figures.notes["sent after it went on"] = len(target.received) - before
        assert len(target.received) == before, "something was sent on old leases"
        _finish(figures, place, target, sorted(wanted), 60)
        assert target.ids() == wanted
        [(ends,)] = place.rows(
            "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM events WHERE type = 'email.delivered' GROUP BY email_id) e"
        )
        assert ends == 1, "settled twice"
        again = Client(first)
        again.batch([f"c{n}@example.net" for n in range(10)], "three")
        until(lambda: set(again.ids) <= target.ids(), 30, "the first process' further work")
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures
