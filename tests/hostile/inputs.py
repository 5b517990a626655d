"""The families of hostile inputs, each a function registered with `@hostile(target)`.

A family is a generator of `(name, bytes)` for a given size, so that only one input is in memory at a time. To add an input, add a
`yield` to a family; to add a family, write a function. `targets.py` defines what each target does with the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

Made = Iterator[tuple[str, bytes]]
SIZES = {"64 kB": 64 * 1024, "1 MB": 1100 * 1024, "40 MB": 40 * 1024 * 1024}  # 1 MB: just large enough to be treated as large

LINE = 900


@attrs.frozen
class Family:
    """A family for one target. `repeat`: how often each of its inputs is sent; None: as often as in the run's options.

    `cpu`: the seconds of CPU that each MB may take.
    """

    name: str
    target: str
    make: Callable[[int], Made]
    repeat: int | None = None
    most: int = SIZES["40 MB"]
    cpu: float = 1.0


FAMILIES: list[Family] = []


def hostile(
    *targets: str, repeat: int | None = None, most: int = SIZES["40 MB"], cpu: float = 1.0
) -> Callable[[Callable[[int], Made]], Callable[[int], Made]]:
    """Registers a family for these targets. `most`: the largest size that they accept."""

    def register(make: Callable[[int], Made]) -> Callable[[int], Made]:
        FAMILIES.extend(Family(make.__name__.replace("_", " "), target, make, repeat, most, cpu) for target in targets)
        return make

    return register


def fill(unit: bytes, size: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """`unit` repeated between the two others, about `size` bytes in all."""
    return before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


def folded(data: bytes) -> bytes:
    """The same with a fold wherever a line would be longer than SMTP takes."""
    lines = []
    for line in data.split(b"\r\n"):
        lines += [line[:LINE], *[b" " + line[at : at + LINE] for at in range(LINE, len(line), LINE)]]
    return b"\r\n".join(lines)


def numbered(size: int, unit: Callable[[int], bytes], before: bytes = b"", after: bytes = b"") -> bytes:
    """The same with units that differ by a number."""
    return before + b"".join(_until(size, map(unit, range(size)))) + after


def _until(size: int, units: Iterable[bytes]) -> Iterator[bytes]:
    for unit in units:
        size -= len(unit)
        if size < 0:
            return
        yield unit
