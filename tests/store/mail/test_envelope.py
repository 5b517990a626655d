"""What is stored of an envelope, and that it is read back as it was."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope

ENTRIES = st.lists(st.none() | st.text(min_size=1), max_size=4).map(tuple)
ENVELOPES = st.builds(
    StoredEnvelope,
    sender=st.text(),
    report=st.booleans(),
    smtputf8=st.booleans(),
    utf8_header=st.booleans(),
    ret=st.sampled_from([None, "FULL", "HDRS"]),
    envid=st.none() | st.text(min_size=1),
    notify=ENTRIES,
    orcpt=ENTRIES,
    trace=st.none() | st.text(min_size=1),
)


@given(ENVELOPES)
def test_stored_envelope_round_trips(envelope: StoredEnvelope) -> None:
    assert StoredEnvelope.read(json.loads(json.dumps(envelope.stored()))) == envelope


@given(ENVELOPES, st.dictionaries(st.text(), st.integers()))
def test_unknown_keys_are_ignored(envelope: StoredEnvelope, newer: dict[str, Any]) -> None:
    stored = envelope.stored() or {}
    known = set(attrs.fields_dict(StoredEnvelope))
    assert StoredEnvelope.read({key: value for key, value in newer.items() if key not in known} | stored) == envelope


@pytest.mark.parametrize(
    ("stored", "envelope"),
    [
        (None, EMPTY),
        ({}, EMPTY),
        ({"sender": ""}, EMPTY),
        ({"report": True}, StoredEnvelope(report=True)),
        (
            {"sender": "me@example.com", "ret": "HDRS", "envid": "a+b", "smtputf8": True, "notify": ["DELAY,SUCCESS", None]},
            StoredEnvelope("me@example.com", ret="HDRS", envid="a+b", smtputf8=True, notify=("DELAY,SUCCESS", None)),
        ),
        ({"sender": "a@b.c", "orcpt": [None, "rfc822;x@b.c"]}, StoredEnvelope("a@b.c", orcpt=(None, "rfc822;x@b.c"))),
    ],
)
def test_existing_rows_are_read(stored: dict[str, Any] | None, envelope: StoredEnvelope) -> None:
    assert StoredEnvelope.read(stored) == envelope


def test_nothing_set_is_stored_as_null() -> None:
    assert EMPTY.stored() is None and StoredEnvelope().stored() is None
