"""The command line of `twistd mailsvc`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailsvc.runtime.options import Options
from mailsvc.settings.reader import SettingsError
from tests.settings.test_cells import TWO


def parsed(folder: Path, *arguments: str) -> Options:
    (folder / "mailsvc.toml").write_text(TWO)
    options = Options()
    options.parseOptions(["--config", str(folder / "mailsvc.toml"), *arguments])
    return options


def test_a_daemon_has_one_set_of_settings(tmp_path: Path) -> None:
    options = parsed(tmp_path)
    assert options["by cell"] == {}
    assert options["settings"].database.cell is None


def test_several_cells_are_chosen_or_shared(tmp_path: Path) -> None:
    assert list(parsed(tmp_path, "--cells", "us_2, us_1")["by cell"]) == ["us_2", "us_1"]
    assert list(parsed(tmp_path, "--cells", "us_2,")["by cell"]) == ["us_2"]
    shared = parsed(tmp_path, "--share-cells")
    assert list(shared["by cell"]) == ["us_1", "us_2"]
    assert shared["by cell"]["us_2"].database.cell == "us_2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cells", "us_1", "--share-cells"), "Use either --cells or --share-cells."),
        (("--cells", "us_1,US"), "The cell 'US' has a wrong name"),
        (("--cells", "us_1,us_3"), "The cells us_1 and us_3 both have tcp:8025"),
    ],
)
def test_mistakes_end_it_with_a_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit, match=f"mailsvc cannot start. {message}"):
        parsed(tmp_path, *arguments)


def test_a_mistake_that_is_found_later_ends_it_too(tmp_path: Path) -> None:
    def mistaken() -> None:
        raise SettingsError("The setting log.file is wrong.")

    with pytest.raises(SystemExit, match=r"mailsvc cannot start\. The setting log\.file is wrong\."):
        parsed(tmp_path).checked(mistaken)
