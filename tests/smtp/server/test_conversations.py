"""Every dialogue of tests/conversations with our server, whole and with each octet in a segment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smtp.dialogue import FOLDER, everything, play, read

DIALOGUES = {str(path.relative_to(FOLDER).with_suffix("")): path for path in everything() if not read(path).clear}
SPLIT = [name for name, path in DIALOGUES.items() if not read(path).whole]


def test_there_are_dialogues() -> None:
    assert len(DIALOGUES) > 90 and len(SPLIT) > 80


@pytest.mark.parametrize("path", DIALOGUES.values(), ids=DIALOGUES)
def test_conversation(path: Path) -> None:
    play(read(path))


@pytest.mark.parametrize("name", SPLIT)
def test_conversation_octet_by_octet(name: str) -> None:
    play(read(DIALOGUES[name]), split=True)
