"""One development server runs in a folder; a second one is told where the first one listens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mailsvc.runtime.one_server import AlreadyRunning, claim
from mailsvc.settings.reader import SettingsError

CLAIM = (
    "import sys; from pathlib import Path; from mailsvc.runtime.one_server import claim; "
    "claim(Path(sys.argv[1])); print('claimed', flush=True)"
)


def other(file: Path, then: str) -> subprocess.Popen[str]:
    """Another process that claims the folder and then does something."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", f"{CLAIM}; {then}", str(file)], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "claimed\n"
    return process


def test_a_second_claim_says_where_the_first_process_listens(tmp_path: Path) -> None:
    file = tmp_path / "var" / "dev.json"
    first = other(file, "import signal; signal.pause()")
    try:
        waits = f"mailsvc is already starting or stopping in this folder, as process {first.pid}. Wait a few seconds, then try again."
        runs = f"mailsvc is already running at http://localhost:1. To stop it: kill {first.pid}"
        for content, sentence in ((None, waits), ("{", waits), (json.dumps({"http": "http://localhost:1"}), runs)):
            if content is not None:
                file.write_text(content)
            with pytest.raises(AlreadyRunning) as refused:
                claim(file)
            assert str(refused.value) == sentence
    finally:
        first.kill()
        first.communicate(timeout=30)
    os.close(claim(file))  # however it ended


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    file = tmp_path / "dev.json"
    with other(file, "") as first:
        first.wait(30)
    os.close(claim(file))
    assert file.with_suffix(".lock").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_writable_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(SettingsError, match=r"The folder .*/taken/var cannot be written \(Not a directory\): make it writable"):
        claim(tmp_path / "taken" / "var" / "dev.json")
    (folder := tmp_path / "var").mkdir(mode=0o555)
    if as_root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(SettingsError, match=r"The folder .*/var cannot be written \(Permission denied\): make it writable"):
            claim(folder / "dev.json")
    finally:
        if as_root:
            os.seteuid(0)
