"""An account's limit of requests a second holds over all processes that take requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import psycopg2
import pytest

from tests.end_to_end.rig import Daemon, eventually

LIMIT = 5


@pytest.fixture
def daemons(tmp_path: Path, database: str) -> Iterator[list[Daemon]]:
    """Two processes on one Postgres; the first does not know of a second when it starts."""
    created = []
    for number, roles in enumerate((["http", "delivery", "ledger"], ["http"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        shared = {"": {"roles": roles}, "secrets": {"key_file": str(tmp_path / "secret.key")}}
        created.append(Daemon(folder, database, shared))
        created[-1].start()
    yield created
    for daemon in created[::-1]:
        assert daemon.stop() == 0


class Asking:
    """Threads that ask two each, as fast as they are answered, until both daemons have refused and three seconds have begun."""

    def __init__(self, daemons: list[Daemon], key: str) -> None:
        self.headers = {"Authorization": f"Bearer {key}", "User-Agent": "tests"}
        self.statuses: Counter[tuple[int, int]] = Counter()  # by daemon and status
        self.counting = threading.Lock()
        self.threads = [threading.Thread(target=self.send, args=(n, daemon.port)) for n, daemon in enumerate(daemons) for _ in range(2)]

    def run(self) -> int:
        """In how many seconds of the clock they sent requests."""
        self.began = time.time()
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return int(time.time()) - int(self.began) + 1

    def send(self, number: int, port: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        while not self.enough() and time.time() - self.began < 30:
            connection.request("GET", "/domains", headers=self.headers)
            answer = connection.getresponse()
            answer.read()
            with self.counting:
                self.statuses[number, answer.status] += 1
        connection.close()

    def enough(self) -> bool:
        return int(time.time()) - int(self.began) >= 3 and self.statuses[0, 429] > 0 and self.statuses[1, 429] > 0


def test_two_processes_keep_to_one_limit(daemons: list[Daemon]) -> None:
    first = daemons[0]
    account = first.command("account", "create", "shared").strip()
    key = first.command("key", "create", "--account", account).strip()
    with psycopg2.connect(first.database) as link, link.cursor() as cursor:
        cursor.execute("UPDATE accounts SET rate_limit = %s WHERE id = %s", (LIMIT, account))
        link.commit()

        def shares() -> list[tuple[object, ...]]:
            """Whether the first asks for its part already, as it does once it knows of the second."""
            first.call("GET", "/domains", key=key)
            cursor.execute("SELECT second FROM rate_windows WHERE account_id = %s", (account,))
            found = cursor.fetchall()
            link.rollback()
            return found

        eventually(shares)
    link.close()
    asking = Asking(daemons, key)
    seconds = asking.run()
    allowed = asking.statuses[0, 200] + asking.statuses[1, 200]
    assert set(asking.statuses) <= {(0, 200), (1, 200), (0, 429), (1, 429)}
    assert LIMIT <= allowed <= LIMIT * seconds, (asking.statuses, seconds)
