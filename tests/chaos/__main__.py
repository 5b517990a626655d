"""`make chaos`: runs the fault experiments in about 25 minutes on two cores. `--help` lists the options."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.chaos import broadcasts, clocks, commands, handoffs, takeovers
from tests.chaos import databases as d
from tests.chaos import experiments as e
from tests.chaos.cluster import can_mount
from tests.chaos.ground import SMTP_SINK, Figures
from tests.chaos.patroni import INSTALLED

HEAD = "| experiment | accepted | delivered | duplicates | lost | waiting | took | |\n|---|--:|--:|--:|--:|--:|--:|---|"


def main() -> int:
    sizes = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    sizes.add_argument("--emails", type=int, default=4000, help="of each experiment with kills")
    sizes.add_argument("--kills", type=int, default=20)
    sizes.add_argument("--tarpits", type=int, default=1000, help="domains that hardly answer")
    sizes.add_argument("--backlog", type=int, default=100_000, help="emails for a dead domain")
    sizes.add_argument("--healthy", type=int, default=200, help="emails whose latency is measured")
    sizes.add_argument("--stopped", type=float, default=180.0, help="seconds that a process is stopped")
    sizes.add_argument("--cuts", type=int, default=10, help="of power")
    sizes.add_argument("--frozen", type=float, default=60.0, help="seconds that Postgres does nothing")
    sizes.add_argument("--wrong", type=float, default=35.0, help="seconds for which a process has a wrong clock")
    sizes.add_argument("--contacts", type=int, default=10_000, help="of a broadcast")
    sizes.add_argument("--broadcast-kills", type=int, default=9, help="of the daemon during the broadcast, and a third of it of Postgres")
    sizes.add_argument("--command-kills", type=int, default=10, help="of each command that reads, erases or imports everything")
    sizes.add_argument("--command-emails", type=int, default=500, help="that these commands have to read")
    sizes.add_argument("--only", help="one of them, such as T6")
    given = sizes.parse_args()
    plan = {
        "T1": lambda: e.killed_daemon(given.emails, given.kills),
        "T2": lambda: e.killed_postgres(given.emails, given.kills),
        "T4": lambda: e.restarted_postgres(given.emails // 4, 20.0),
        "T5": lambda: e.lost_replies(50),
        "T6 T14": lambda: e.tarpits(given.tarpits, given.backlog, given.healthy),
        "T7": lambda: e.refusals(300, 30.0),
        "T9": lambda: e.bad_dns(20),
        "T12": lambda: e.stopped_process(200, given.stopped),
        "T15": lambda: d.killed_backends(given.emails, 2 * given.kills),
        "T16": lambda: d.frozen(200, given.frozen),
        "T17": lambda: d.dropped(given.emails // 4, 5.0),
        "T18": lambda: d.full_disk(200),
        "T19": lambda: d.full_wal(200),
        "T20": lambda: d.wrong_key(100),
        "T21": lambda: d.stopped_without_database(10.0),
        "T22": lambda: d.power_cuts(given.emails // 4, given.cuts),
        "T23": lambda: takeovers.standby(given.emails // 2),
        "T24": lambda: clocks.wrong_clock(200, given.wrong),
        "T25": lambda: clocks.step_back(200),
        "T26": lambda: broadcasts.killed(given.contacts, given.broadcast_kills, max(1, given.broadcast_kills // 3)),
        "T27": lambda: commands.killed(given.command_kills, given.command_emails),
        "T28": lambda: takeovers.fallen_behind(given.emails // 20),
        "T33": lambda: takeovers.promoted(given.emails // 2),
        "T34": lambda: handoffs.killed(given.emails, given.kills),
        "T35": lambda: handoffs.stopped(given.emails // 2, 80.0),
    }
    needs = {
        **dict.fromkeys(("T5", "T6 T14", "T7"), (SMTP_SINK is not None, "Postfix's smtp-sink (Debian: postfix)")),
        **dict.fromkeys(("T18", "T19"), (can_mount(), "to mount a small file system, as root can")),
        "T22": (d.COMPILER is not None, "a C compiler"),
        **dict.fromkeys(("T24", "T25"), (clocks.LIBRARY is not None, "libfaketime (Debian: libfaketime)")),
        "T33": (INSTALLED, "Patroni, etcd and Postgres 15 (Debian: patroni, etcd-server, postgresql-15)"),
    }
    done: list[Figures] = []
    failed = []
    began = time.monotonic()
    for name, experiment in plan.items():
        if given.only and given.only not in name.split():
            continue
        there, what = needs.get(name, (True, ""))
        if not there:
            print(f"{name} needs {what}, which is not possible here: NOT run.", flush=True)
            continue
        try:
            done.append(experiment())
            print(done[-1].row(), flush=True)
        except Exception:
            failed.append(name)
            traceback.print_exc()
    print(f"\n{HEAD}", *(each.row() for each in done), sep="\n")
    print(f"\n{len(done)} experiments in {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
