"""`python -m tests.hostile`: runs all hostile inputs at full size and prints the worst. `--help` shows how to select some."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.hostile.inputs import SIZES
from tests.hostile.run import Figure, Ground, chosen, ground, run_family, table, wrong
from tests.memory import QUICK


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--targets", nargs="*", default=[], help="for example relay, exchange, http, view, replies")
    parser.add_argument("--families", nargs="*", default=[], help="names of families, for example 'json structure'")
    parser.add_argument("--only", default="", help="only inputs with this text in `family / name`")
    parser.add_argument("--times", type=int, default=10, help="how often to repeat one input of each family")
    parser.add_argument("--most", type=int, default=60, help="rows of the table")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-hostile-", dir="/tmp"))
    folder.chmod(0o711)
    server = EmbeddedPostgres.at(folder / "postgres", QUICK)
    try:
        return asyncio.run(_run(folder, server.start_blocking(), given))
    finally:
        server.stop_blocking()
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, database: str, given: argparse.Namespace) -> int:
    figures: list[Figure] = []
    failed: list[str] = []
    began = time.monotonic()
    async with ground(folder, database) as place:
        print(f"At rest {place.resting >> 20} MB; without input: {_noise(place)}", flush=True)
        for size in given.sizes:
            for family in chosen(given.targets, given.families):
                begun = time.monotonic()
                found = await run_family(place, family, size, given.times, given.only)
                figures += found
                new = [each for figure in found for each in wrong(figure, place)]
                failed += new
                took = time.monotonic() - begun
                if found:
                    print(
                        f"{size} {family.target} {family.name}: {len(found)} inputs, {took:.1f} s, {len(new)} failed",
                        *new,
                        sep="\n  ",
                        flush=True,
                    )
                await place.calibrate(0.2)
        print(f"\n{table(figures, given.most)}\n\nWithout input: {_noise(place)}")
    print(f"{len(figures)} inputs in {time.monotonic() - began:.0f} s; {len(failed)} failures", *failed, sep="\n  ")
    return 1 if failed else 0


def _noise(place: Ground) -> str:
    return f"/healthz after {place.noise * 1000:.0f} ms, another account's mail after {place.mail_noise:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
