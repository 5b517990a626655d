"""Endpoints that cannot be opened are errors of their setting."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_twisted

from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.listeners import Listening
from mailsvc.settings.reader import SettingsError


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("tcp:abc", "invalid literal for int"),
        ("ssl:0:privateKey={0}/missing.pem", "No such file or directory"),
        ("ssl:0:privateKey={0}/junk.pem", "."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_endpoint_that_cannot_be_read_is_named(tmp_path: Path, endpoint: str, why: str) -> None:
    from twisted.internet import reactor

    (tmp_path / "junk.pem").write_text("junk")
    given = endpoint.format(tmp_path)
    with pytest.raises(SettingsError) as refused:
        await Listening(reactor, Opened()).open("http.listen", [given], None)
    sentence = str(refused.value)
    assert sentence.startswith(f"The setting http.listen contains {given!r}, which is not a valid endpoint: ") and why in sentence
