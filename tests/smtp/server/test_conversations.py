"""Plays every server dialogue of tests/conversations, as a whole and byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailsvc.smtp.server import replies
from mailsvc.smtp.server.commands import COMMANDS
from tests.smtp.dialogue import FOLDER, everything, play, read

DIALOGUES = {str(path.relative_to(FOLDER).with_suffix("")): path for path in everything() if not read(path).clear}
SPLIT = [name for name, path in DIALOGUES.items() if not read(path).whole]


def test_dialogues_exist() -> None:
    assert len(DIALOGUES) > 90 and len(SPLIT) > 80


@pytest.mark.parametrize("path", DIALOGUES.values(), ids=DIALOGUES)
def test_conversation(path: Path) -> None:
    play(read(path))


@pytest.mark.parametrize("name", SPLIT)
def test_conversation_byte_by_byte(name: str) -> None:
    play(read(DIALOGUES[name]), split=True)


def test_help_lists_the_commands() -> None:
    listed = set(replies.HELP.text.partition(".")[0].encode().split()) - {b"Commands:"}
    assert listed == COMMANDS.keys() - {b"EXPN"} | {b"BDAT"}
