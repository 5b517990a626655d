"""Experiments with two processes, of which one accepts mail and hands it over to the other, which delivers it."""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from typing import Any

from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, Ground, ground, in_background, sink, until
from tests.end_to_end.rig import Daemon, free_port

CLIENTS = 4
TOKEN = "of-the-metrics"


def _pair(place: Ground, port: int) -> tuple[Daemon, Daemon]:
    """The process that accepts, and the one that delivers."""
    accepts = place.daemon({**_all(port), "": {"roles": ["http", "smtp", "ledger", "domains"]}})
    metrics = {"listen": [f"tcp:{free_port()}:interface=127.0.0.1"], "token": TOKEN}
    return accepts, place.daemon({**_all(port), "": {"roles": ["delivery"]}, "metrics": metrics})


def _handed_over(delivers: Daemon) -> int:
    """How many emails were sent without a claim since it started."""
    [listen] = delivers.changes["metrics"]["listen"]  # type: ignore[misc]
    request = urllib.request.Request(f"http://127.0.0.1:{listen.split(':')[1]}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        [line] = [line for line in response if line.startswith(b'mailsvc_handed_over_total{result="sent"}')]
    return int(float(line.split()[-1]))


def _warm(clients: list[Client], target: Any, delivers: Daemon) -> None:
    """Until mail is handed over: both know the route."""
    numbers = iter(range(1000))

    def tried() -> bool:
        clients[0].one(f"w{next(numbers)}@example.net", "warm")
        return _handed_over(delivers) > 0

    until(tried, 30, "handing over")
    until(lambda: set(clients[0].ids) <= target.ids(), 30, "the arrival of the first emails")


def killed(emails: int, kills: int) -> Figures:
    """T34: kill -9 of either process at random moments, while clients send emails one by one."""
    figures, began = Figures("T34 kill -9 of the process that accepts or of the one that delivers"), time.monotonic()
    with sink() as target, ground() as place:
        pair = _pair(place, target.port)
        clients = [Client(pair[0]) for _ in range(CLIENTS)]
        _warm(clients, target, pair[1])
        sending = [
            in_background(lambda c=c, n=n: [c.one(f"c{n}-{m}@example.net", f"k{n}") for m in range(emails // CLIENTS)])
            for n, c in enumerate(clients)
        ]
        moments, handed_over = random.Random(2033), 0
        for number in range(kills):
            time.sleep(moments.uniform(0.2, 1.5))
            if number % 2:
                handed_over += _handed_over(pair[1])  # it counts from its start
            pair[number % 2].kill()
            pair[number % 2].start()
        for thread in sending:
            thread.join(300)
            assert not thread.is_alive()
        ids = [each for client in clients for each in client.ids]
        _finish(figures, place, target, ids, 120)
        handed_over += _handed_over(pair[1])
    figures.notes = {"handed over": handed_over, "kills": kills, "duplicates allowed": kills * CONNECTIONS}
    assert figures.lost == 0
    assert figures.duplicates <= kills * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def stopped(emails: int, seconds: float) -> Figures:
    """T35: the process that accepts is suspended at a random moment while it hands mail over, and continued after `seconds`."""
    figures, began = Figures("T35 the process that accepts, stopped and continued"), time.monotonic()
    with sink() as target, ground() as place:
        accepts, delivers = _pair(place, target.port)
        clients = [Client(accepts) for _ in range(CLIENTS)]
        _warm(clients, target, delivers)
        sending = [
            in_background(lambda c=c, n=n: [c.one(f"s{n}-{m}@example.net", f"s{n}") for m in range(emails // CLIENTS)])
            for n, c in enumerate(clients)
        ]
        until(lambda: len(target.ids()) > emails // 3, 60, "a third of the emails")
        assert accepts.process is not None
        accepts.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: not place.waiting(), seconds, lambda: f"an empty queue; what waits: {place.summary()}")
        figures.notes["everything delivered after"] = f"{time.monotonic() - stopped:.0f} s"
        time.sleep(max(0.0, seconds - (time.monotonic() - stopped)))
        accepts.process.send_signal(signal.SIGCONT)
        for thread in sending:
            thread.join(120)
            assert not thread.is_alive()
        ids = [each for client in clients for each in client.ids]
        _finish(figures, place, target, ids, 60)
        figures.notes["handed over"] = _handed_over(delivers)
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures
