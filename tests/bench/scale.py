"""`make scale`: all about cells. Moves under load, kills, cut links, isolation, CPU per email; and sizes of installations, from all that.

It needs Citus beside Debian's Postgres 15 (tests/chaos/citus_nodes). `--only sizes` computes the sizes alone, without it.
"""

from __future__ import annotations

import argparse
import math
import sys
import traceback

import attrs

from tests.bench import cells as costs
from tests.chaos import account_moves, cells, links, machines, takeovers
from tests.chaos.__main__ import HEAD
from tests.chaos.citus_nodes import missing
from tests.chaos.networks import can_cut
from tests.chaos.patroni import INSTALLED

BUSIEST = 36_000  # seconds: the busiest hour has a tenth of the day's emails
HALF = 0.5  # how busy servers and processes are planned to be
VOLUMES = (10**6, 10**8, 10**9, 10**10)  # emails a day


@attrs.frozen
class Costs:
    """Measured: docs/performance.md for `POST /emails` with one recipient and 4 KB, docs/scale.md for cells. The last four are assumed."""

    process_rate: float = 794.0  # emails a second that one process accepts and delivers
    database_cpu: float = 0.23e-3  # seconds of a core for each email
    bytes: int = 10_200  # of disk for each email, with write-ahead log and vacuum
    catalogue: int = 23_000_000  # bytes of one cell at each node: 9 MB measured with partitions of 18 days, and with 47 days then
    relations: int = 1_350  # tables and indexes of one cell at each node: 263, and 23 for each of 47 days
    background: float = 3.0  # statements a second of one process without mail: heartbeats, its lock, what it polls
    node_cores: int = 16
    node_terabytes: float = 8.0
    days: int = 30  # that emails are kept
    processes_min: int = 2  # of each cell


@attrs.frozen
class Size:
    """What one volume needs."""

    a_day: int
    a_second: float
    nodes: int
    processes: int
    terabytes: float
    background: float
    catalogue: float
    relations: int

    def row(self) -> str:
        figures = (
            f"{self.a_day:,}", f"{self.a_second:,.0f}", self.nodes, self.processes, f"{self.terabytes:,.1f}", f"{self.background:,.0f}",
            f"{self.catalogue:,.1f}", f"{self.relations:,}",
        )  # fmt: skip
        return f"| {' | '.join(map(str, figures))} |"


SIZES = (
    "| emails a day | peak a second | nodes and cells | processes | TB in 30 days | statements a second without mail, all processes "
    "| GB of catalogue at each node | tables and indexes at each node |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def size(a_day: int, given: Costs) -> Size:
    """One cell for each node. Nodes and processes are planned for the peak, nodes also for their disks."""
    peak, stored = a_day / BUSIEST, a_day * given.days * given.bytes / 1e12
    nodes = max(1, math.ceil(peak * given.database_cpu / (given.node_cores * HALF)), math.ceil(stored / given.node_terabytes))
    processes = max(given.processes_min * nodes, math.ceil(peak / (given.process_rate * HALF)))
    return Size(
        a_day, peak, nodes, processes, stored, processes * given.background, nodes * given.catalogue / 1e9, nodes * given.relations
    )  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(prog="make scale", description=__doc__)
    options.add_argument("--emails", type=int, default=1000, help="of each experiment with kills")
    options.add_argument("--kills", type=int, default=12)
    options.add_argument("--moves", type=int, default=4)
    options.add_argument("--rounds", type=int, default=5, help="of the measurement of CPU per email")
    options.add_argument("--cut", type=float, default=30, help="seconds that a link is cut")
    options.add_argument("--only", help="one of them: T29 to T32, T34 to T43, costs, sizes")
    given = options.parse_args()
    plan = {
        "T29": lambda: print(cells.moved_cell(given.emails, given.moves).row()),  # noqa: T201
        "T30": lambda: print(cells.killed_while_moving(given.emails, given.kills).row()),  # noqa: T201
        "T31": lambda: print(cells.without_coordinator(given.emails).row()),  # noqa: T201
        "T32": lambda: print(cells.stopped_worker(200).row()),  # noqa: T201
        "T34": lambda: print(links.without_coordinator(given.emails, given.cut).row()),  # noqa: T201
        "T35": lambda: print(links.without_node(given.emails, (given.cut / 6, given.cut)).row()),  # noqa: T201
        "T36": lambda: print(account_moves.moved_account(given.emails, given.moves).row()),  # noqa: T201
        "T37": lambda: print(account_moves.killed_while_moved(given.emails, given.kills).row()),  # noqa: T201
        "T38": lambda: print(machines.shared(2 * given.emails).row()),  # noqa: T201
        "T39": lambda: print(takeovers.of_a_node(given.emails).row()),  # noqa: T201
        "T40": lambda: print(takeovers.of_a_node_fallen_behind(given.emails // 20).row()),  # noqa: T201
        "T41": lambda: print(takeovers.of_the_coordinator(given.emails).row()),  # noqa: T201
        "T42": lambda: print(takeovers.of_a_node_promoted(given.emails).row()),  # noqa: T201
        "T43": lambda: print(machines.cut_off(given.emails).row()),  # noqa: T201
        "costs": lambda: costs.measure(given.rounds, 2000),
        "sizes": lambda: print("\n".join([SIZES, *(size(each, Costs()).row() for each in VOLUMES)])),  # noqa: T201
    }
    if given.only != "sizes" and (why := missing()) is not None:
        print(f"make scale: {why}.")  # noqa: T201
        return 1
    if not can_cut():
        print("T34, T35 and T43 need root and network namespaces, which are not possible here: NOT run.")  # noqa: T201
        plan = {name: run for name, run in plan.items() if name not in ("T34", "T35", "T43")}
    if not INSTALLED:
        print("T42 needs Patroni and etcd (Debian: patroni, etcd-server): NOT run.")  # noqa: T201
        del plan["T42"]
    failed = []
    print(HEAD)  # noqa: T201
    for name, run in plan.items():
        if given.only in (None, name):
            try:
                run()
            except Exception:
                traceback.print_exc()
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
