"""What several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from mailsvc.cli.output import ExistingFile


def test_a_file_that_the_user_may_not_read_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bounces.json"
    with pytest.raises(click.BadParameter, match=r"bounces\.json' does not exist"):
        ExistingFile().convert(str(file), None, None)
    file.touch()
    assert ExistingFile().convert(str(file), None, None) == file
    with pytest.raises(click.BadParameter, match="is a directory"):
        ExistingFile().convert(str(tmp_path), None, None)

    def refused(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(click.BadParameter, match=r"the user \w+, who runs this command, cannot read '.*bounces\.json'"):
        ExistingFile().convert(str(file), None, None)
