"""Every dialogue of tests/conversations, whole and with each octet in a segment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smtp.dialogue import FOLDER, everything, play, read

DIALOGUES = everything()


def test_there_are_dialogues() -> None:
    assert len(DIALOGUES) > 30


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("path", DIALOGUES, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_conversation(path: Path, split: bool) -> None:
    play(read(path), split=split)
