"""`python -m tests.smtp.fuzz --inputs 100000 --seed 1`: as many dialogues, damaged at random, against framing, parser and conversation.

Each is answered by well-formed replies and nothing worse, raises nothing, leaves no timer, and says the same however it is cut.
A failure prints its input. The same inputs come with the same seed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time

from twisted.logger import globalLogPublisher

from tests.smtp.harness import Client
from tests.smtp.server.test_mutations import DIALOGUES, MORE, insert, lose, outcome, repeat

REPLY = re.compile(rb"(?:[2-5]\d\d[ -][\x20-\x7e]*\r\n)*")


def damaged(chance: random.Random, octets: bytes) -> bytes:
    for _ in range(chance.randint(1, 8)):
        place, kind = chance.random(), chance.randrange(5)
        if kind == 0:
            octets = insert(place, chance.choice(MORE))(octets)
        elif kind == 1:
            octets = insert(place, chance.randbytes(chance.randint(1, 6)))(octets)
        elif kind == 2:
            octets = lose(place, chance.randint(1, 30))(octets)
        elif kind == 3:
            octets = repeat(place, chance.randint(1, 60))(octets)
        else:
            other = chance.choice(DIALOGUES)[1]
            octets = insert(place, other[: chance.randint(1, len(other))])(octets)
    return octets


def run(inputs: int, seed: int) -> int:
    """How many replies there were. An AssertionError has the input that went wrong."""
    chance, failures, replies = random.Random(seed), list[object](), 0

    def watch(event: dict[str, object]) -> None:
        if "log_failure" in event and "No space left" not in str(event["log_failure"]):
            failures.append(event)

    globalLogPublisher.addObserver(watch)
    try:
        for _ in range(inputs):
            listener, octets = chance.choice(DIALOGUES)
            octets = damaged(chance, octets)
            cuts = sorted(chance.randint(0, len(octets)) for _ in range(chance.randint(0, 6)))
            whole = outcome(listener, [octets])
            pieces = [octets[a:b] for a, b in zip([0, *cuts], [*cuts, len(octets)], strict=True)]
            assert REPLY.fullmatch(whole[0]), (listener, octets, whole[0])
            assert outcome(listener, pieces, slow=chance.random() < 0.2) == whole, (listener, octets, cuts)
            assert not failures, (listener, octets, failures)
            Client.all.clear()
            replies += whole[0].count(b"\n")
    finally:
        globalLogPublisher.removeObserver(watch)
    return replies


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.smtp.fuzz", description=__doc__)
    options.add_argument("--inputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    began = time.monotonic()
    replies = run(chosen.inputs, chosen.seed)
    print(f"{chosen.inputs} inputs, {replies} replies, seed {chosen.seed}: all as they should be, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
