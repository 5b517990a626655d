"""How machines share cells, played with any number of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.runtime.cells.share import to_give_up, to_take

NOBODY = {"a": False, "b": False}
A, B = {"a": True, "b": False}, {"a": False, "b": True}


def test_a_free_cell_is_taken_by_a_machine_that_has_no_more_than_the_others() -> None:
    assert to_take("a", {"red": NOBODY, "blue": NOBODY}) == "blue"
    assert to_take("a", {"red": A, "blue": NOBODY}) is None, "b has fewer"
    assert to_take("b", {"red": A, "blue": NOBODY}) == "blue"
    assert to_take("a", {"red": A, "blue": {"a": False}}) == "blue", "b cannot have it"
    assert to_take("a", {"red": B, "blue": A}) is None
    assert to_take("a", {"red": NOBODY}, resting=["red"]) is None


def test_a_cell_is_left_to_a_machine_that_has_two_fewer() -> None:
    assert to_give_up("a", {"red": A, "blue": A}) == "blue"
    assert to_give_up("b", {"red": A, "blue": A}) is None
    assert to_give_up("a", {"red": A, "blue": B, "green": A}) is None, "2 and 1"
    assert to_give_up("a", {"red": {"a": True}, "blue": {"a": True}}) is None, "nobody else can have them"


Machines = Mapping[str, Collection[str]]


@st.composite
def installations(draw: st.DrawFn) -> tuple[Machines, dict[str, str | None]]:
    """The cells that each machine can have, and who has which now."""
    cells = [f"c{number}" for number in range(draw(st.integers(1, 9)))]
    machines = {f"m{number}": cells for number in range(draw(st.integers(1, 5)))}
    return machines, {cell: draw(st.sampled_from([None, *machines])) for cell in cells}


@given(installations(), st.randoms(use_true_random=False))
def test_whoever_comes_first_all_cells_are_had_and_no_machine_has_two_more_than_another(installation, random) -> None:
    machines, has = installation
    changes, limit = 0, 3 * len(has)

    def seen(machine: str) -> dict[str, dict[str, bool]]:
        return {cell: {each: has[cell] == each for each, can in machines.items() if cell in can} for cell in machines[machine]}

    while True:
        order, before = list(machines), dict(has)
        random.shuffle(order)
        for machine in order:
            if (cell := to_take(machine, seen(machine))) is not None:
                has[cell] = machine
            elif (cell := to_give_up(machine, seen(machine))) is not None:
                has[cell] = None
        if has == before:
            break
        changes += 1
        assert changes <= limit, "they do not come to rest"
    counts = Counter(dict.fromkeys(machines, 0))
    counts.update(filter(None, has.values()))
    assert None not in has.values()
    assert max(counts.values()) - min(counts.values()) <= 1
