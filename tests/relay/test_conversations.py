"""Plays every dialogue of tests/conversations/relay, as a whole and byte by byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mailsvc.relay.ports import KINDS
from tests.relay.harness import RelayRig
from tests.smtp.dialogue import RELAY, converse, read

DIALOGUES = sorted(RELAY.glob("*.txt"))


def test_dialogues_exist() -> None:
    assert len(DIALOGUES) >= 5


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("path", DIALOGUES, ids=lambda path: path.stem)
def test_conversation(path: Path, split: bool) -> None:
    dialogue, rig = read(path), RelayRig(unauthenticated_bytes=None, errors=1000)
    client = rig.connect(dialogue.listener, dialogue.host)
    if KINDS[dialogue.listener] == "tls":
        client.client.protocol.session.tls = {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"}
    assert client.greeting == dialogue.turns[0].expected.pop(0) + "\r\n"
    converse(dialogue, client.client, split=split)
    assert len(rig.intake.emails) == dialogue.mails
    if dialogue.body is not None:  # after the Received field
        assert re.sub(rb"\AReceived: .*\r\n(?:[ \t].*\r\n)*", b"", rig.intake.messages[-1]) == dialogue.body
    assert rig.budget.used == 0 and len(rig.relay.per_address) == len(rig.relay.per_key) == 0
    assert not rig.clock.getDelayedCalls(), "a timer is left"
