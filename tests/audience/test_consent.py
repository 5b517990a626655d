"""Who gets which mail."""

from __future__ import annotations

import itertools

import pytest

from mailsvc.audience.consent import refusal

IN, OUT, NONE = True, False, None
TOPICS = [
    # default, choice, gets it
    (IN, IN, True),
    (IN, OUT, False),
    (IN, NONE, True),
    (OUT, IN, True),
    (OUT, OUT, False),
    (OUT, NONE, False),
]


@pytest.mark.parametrize(("default", "choice", "gets_it"), TOPICS)
def test_topic_is_decided_by_the_choice_and_otherwise_by_the_default(default: bool, choice: bool | None, gets_it: bool) -> None:
    assert refusal(False, default, choice) == (None if gets_it else "topic")


@pytest.mark.parametrize(("default", "choice", "_"), TOPICS)
def test_unsubscribed_contact_gets_no_topic(default: bool, choice: bool | None, _: bool) -> None:
    assert refusal(True, default, choice) == "unsubscribed"


@pytest.mark.parametrize("choice", [IN, OUT, NONE])
def test_without_a_topic_only_the_global_switch_counts(choice: bool | None) -> None:
    assert refusal(False, None, choice) is None
    assert refusal(True, None, choice) == "unsubscribed"


def test_every_combination_is_listed() -> None:
    assert {(default, choice) for default, choice, _ in TOPICS} == set(itertools.product([IN, OUT], [IN, OUT, NONE]))
