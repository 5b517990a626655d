"""Hostile inputs at 64 kB and 1 MB. All of them, and at 40 MB: `make full`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.hostile.inputs import FAMILIES, SIZES, Family, fill, numbered
from tests.hostile.run import Figure, Ground, ground, run_family, table, wrong

CI = ("64 kB", "1 MB")
SLOW = ("broadcast", "view", "imports")  # targets that take long for each input


def in_ci(size: str, family: Family) -> bool:
    """What two targets have in common is sent through one of them at each size, and to slow targets only the larger one.

    `make full` sends all.
    """
    shared = {other.target for other in FAMILIES if other.name == family.name} == {"relay", "exchange"}
    if size == CI[0]:
        if shared:
            return (family.target == "relay") == (family.name in ("header blocks", "contents"))
        return family.target not in SLOW
    if shared:
        return (family.target == "relay") == (family.name in ("structure", "contents"))
    return family.most > SIZES[CI[0]] and family.target not in ("session", "link", "mail", "rcpt", "data")


PLAN = [(size, family) for size in CI for family in FAMILIES if in_ci(size, family)]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def place(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Ground]:
    stack = AsyncExitStack()
    figures: list[Figure] = []
    found = runner.run(stack.enter_async_context(ground(tmp_path_factory.mktemp("hostile"), module_database)))
    found.figures = figures
    yield found
    runner.run(stack.aclose())
    print(f"\n{table(figures)}\n\nWithout input: /healthz after {found.noise * 1000:.0f} ms")


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("size", "family"), PLAN, ids=[f"{size}, {family.target}, {family.name}" for size, family in PLAN])
def test_nobody_is_delayed(place: Ground, runner: asyncio.Runner, size: str, family: Family) -> None:
    figures = runner.run(run_family(place, family, size, times=10 if size == CI[-1] else 1))
    runner.run(place.calibrate(0.1))
    place.figures += figures
    failed = [each for figure in figures for each in wrong(figure, place)]
    assert not failed, "\n".join([*failed, f"Without input: /healthz after {place.noise * 1000:.0f} ms"])


def test_inputs_have_about_the_size_that_was_asked_for() -> None:
    for family in FAMILIES:
        names = set()
        for name, data in family.make(64 * 1024):
            assert isinstance(data, bytes) and 0 < len(data) < 200 * 1024, (family.name, name)
            names.add(name)
        assert len(names) == len(list(family.make(1000))), f"{family.name} has a name twice"


def test_generators() -> None:
    assert fill(b"ab", 10, b"<", b">") == b"<abababab>"
    assert numbered(10, lambda n: b"%d;" % n, b"[", b"]") == b"[0;1;2;3;4;]"
