"""`python -m tests.smtp.fuzz --inputs 100000 --seed 1`: plays randomly damaged dialogues against framing, parser and conversation.

Each must get well-formed replies, the same in any segments, and must raise nothing and leave no timer. A failure prints its input. The
same seed gives the same inputs.
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


def damaged(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.randint(1, 8)):
        place, kind = chance.random(), chance.randrange(5)
        if kind == 0:
            data = insert(place, chance.choice(MORE))(data)
        elif kind == 1:
            data = insert(place, chance.randbytes(chance.randint(1, 6)))(data)
        elif kind == 2:
            data = lose(place, chance.randint(1, 30))(data)
        elif kind == 3:
            data = repeat(place, chance.randint(1, 60))(data)
        else:
            other = chance.choice(DIALOGUES)[1]
            data = insert(place, other[: chance.randint(1, len(other))])(data)
    return data


def run(inputs: int, seed: int) -> int:
    """How many replies there were. An AssertionError has the input that went wrong."""
    chance, failures, replies = random.Random(seed), list[object](), 0

    def watch(event: dict[str, object]) -> None:
        if "log_failure" in event and "No space left" not in str(event["log_failure"]):
            failures.append(event)

    globalLogPublisher.addObserver(watch)
    try:
        for _ in range(inputs):
            listener, data = chance.choice(DIALOGUES)
            data = damaged(chance, data)
            cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(0, 6)))
            whole = outcome(listener, [data])
            pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            assert REPLY.fullmatch(whole[0]), (listener, data, whole[0])
            assert outcome(listener, pieces, slow=chance.random() < 0.2) == whole, (listener, data, cuts)
            assert not failures, (listener, data, failures)
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
