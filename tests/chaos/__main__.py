"""`make chaos`: the fault experiments, bounded to about a quarter of an hour on two cores. `--help` shows the sizes."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.chaos import clocks
from tests.chaos import experiments as e
from tests.chaos.ground import SMTP_SINK, Figures

HEAD = "| experiment | accepted | delivered | duplicates | lost | waiting | took | |\n|---|--:|--:|--:|--:|--:|--:|---|"


def main() -> int:
    sizes = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    sizes.add_argument("--emails", type=int, default=4000, help="of each experiment with kills")
    sizes.add_argument("--kills", type=int, default=20)
    sizes.add_argument("--tarpits", type=int, default=1000, help="domains that hardly answer")
    sizes.add_argument("--backlog", type=int, default=100_000, help="emails for a dead domain")
    sizes.add_argument("--healthy", type=int, default=200, help="emails whose latency is measured")
    sizes.add_argument("--stopped", type=float, default=180.0, help="seconds that a process is stopped")
    sizes.add_argument("--wrong", type=float, default=35.0, help="seconds for which a process has a wrong clock")
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
        "T16": lambda: clocks.wrong_clock(200, given.wrong),
        "T17": lambda: clocks.step_back(200),
    }
    done: list[Figures] = []
    failed = []
    began = time.monotonic()
    for name, experiment in plan.items():
        if given.only and given.only not in name.split():
            continue
        if SMTP_SINK is None and name in ("T5", "T6 T14", "T7"):
            print(f"{name} needs Postfix's smtp-sink (Debian: postfix), which is not here: NOT run.", flush=True)
            continue
        if clocks.LIBRARY is None and name in ("T16", "T17"):
            print(f"{name} needs libfaketime (Debian: libfaketime), which is not here: NOT run.", flush=True)
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
