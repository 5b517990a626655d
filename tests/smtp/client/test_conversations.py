"""Plays every client dialogue of tests/conversations/client, as a whole and byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smtp.client.dialogue import play, read
from tests.smtp.dialogue import CLIENT

DIALOGUES = sorted(CLIENT.glob("*.txt"))
SPLIT = [path for path in DIALOGUES if "whole" not in read(path).directions]


def test_dialogues_exist() -> None:
    assert len(DIALOGUES) >= 27


@pytest.mark.parametrize("path", DIALOGUES, ids=lambda path: path.stem)
def test_conversation(path: Path) -> None:
    play(read(path))


@pytest.mark.parametrize("path", SPLIT, ids=lambda path: path.stem)
def test_conversation_byte_by_byte(path: Path) -> None:
    play(read(path), split=True)
