"""OpenTelemetry traces: what a receiver gets of an email that passes through two processes, and that mail does not wait for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.collector import Collector, Received
from tests.end_to_end.receiver import Receiver
from tests.end_to_end.rig import PROJECT, Daemon
from tests.end_to_end.sink import Sink
from tests.end_to_end.webhooks.test_webhooks import FETCH, subscribe

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the example of W3C Trace Context
UNSAMPLED = CALLER[:-1] + "0"
ADDRESS, SUBJECT = "zoe@example.net", "A private subject"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def settings(sink: Sink, tmp_path: Path, endpoint: str) -> dict[str, Mapping[str, object]]:
    return {
        **FETCH,
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}},
        "secrets": {"key_file": str(tmp_path / "secret.key")},
        "tracing": {"endpoint": endpoint},
    }


def send(daemon: Daemon, trace: str | None = None, to: str = ADDRESS) -> str:
    body = {"from": f"a@{daemon.facts['domain']}", "to": to, "subject": SUBJECT, "text": "Hello."}
    answer = daemon.call("POST", "/emails", body, {} if trace is None else {"traceparent": trace})
    assert answer.status == 200, answer
    return str(answer.body["id"])


def steps(spans: list[Received], trace: str) -> dict[str, Received]:
    return {span.name: span for span in spans if span.trace == trace}


def test_one_trace_follows_an_email_through_two_processes(
    tmp_path: Path, database: str, sink: Sink, collector: Collector, receiver: Receiver
) -> None:
    changes = settings(sink, tmp_path, collector.url)
    both = []
    for name, roles in (("front", ["http"]), ("back", ["delivery", "ledger", "webhooks", "domains"])):
        (tmp_path / name).mkdir()
        both.append(Daemon(tmp_path / name, database, {**changes, "": {"roles": roles, "base_url": "http://localhost"}}))
    front, back = both
    try:
        front.start()
        subscribe(front, f"{receiver.url}/token-in-the-path", "email.delivered")
        back.start()
        email = send(front, CALLER)
        _, trace, span, _ = CALLER.split("-")
        found = steps(collector.wait(lambda spans: "webhook" in steps(spans, trace)), trace)
    finally:
        for daemon in both:
            if daemon.process is not None:
                daemon.stop()
    found = steps(collector.spans, trace)  # a process that stops sends what is left
    assert set(found) == {"POST /emails", "accept", "attempt", "webhook"}
    request, accept, attempt, webhook = (found[name] for name in ("POST /emails", "accept", "attempt", "webhook"))
    assert (request.parent, accept.parent, attempt.parent, webhook.parent) == (span, request.id, accept.id, accept.id)
    assert request.facts["http.response.status_code"] == webhook.facts["http.response.status_code"] - 4 == 200
    assert accept.facts["mailsvc.email.id"] == attempt.facts["mailsvc.email.id"] == email
    assert attempt.facts["mailsvc.outcomes"] == "1 delivered" and webhook.facts["mailsvc.event.type"] == "email.delivered"
    assert all(each.error == "" and each.service == "mailsvc" and each.seconds >= 0 for each in found.values())
    assert receiver.received[0].headers["traceparent"] == f"00-{trace}-{webhook.id}-01"
    assert not any(each in collector.raw for each in (ADDRESS.encode(), SUBJECT.encode(), b"token-in-the-path"))


def test_a_refused_mail_a_new_trace_and_one_that_the_caller_does_not_want(
    tmp_path: Path, database: str, sink: Sink, collector: Collector
) -> None:
    sink.refuse[ADDRESS] = "550 5.1.1 unknown"
    daemon = Daemon(tmp_path, database, settings(sink, tmp_path, collector.url))
    daemon.start()
    try:
        send(daemon, UNSAMPLED, "ann@example.net")
        send(daemon, "not a traceparent")
        [attempt] = [each for each in collector.wait(lambda spans: any(each.name == "attempt" for each in spans)) if each.name == "attempt"]
        assert attempt.error == "1 bounced" and attempt.facts["mailsvc.attempt"] == 1
    finally:
        sink.refuse.clear()
        daemon.stop()
    traces = {each.trace for each in collector.spans if each.name != "GET /openapi.json"}
    assert len(traces) == 1 and CALLER.split("-")[1] not in traces


@pytest.mark.parametrize("answer", [None, 503])
def test_mail_does_not_wait_for_a_receiver_that_fails(
    tmp_path: Path, database: str, sink: Sink, collector: Collector, answer: int | None
) -> None:
    collector.answer = answer
    daemon = Daemon(tmp_path, database, settings(sink, tmp_path, collector.url))
    daemon.start()
    before = len(sink.received)
    try:
        send(daemon)
        collector.wait(lambda spans: bool(spans))
        for _ in range(20):
            send(daemon)
        sink.wait_until(lambda received: len(received) >= before + 21, 30)
    finally:
        assert daemon.stop() == 0
    if answer == 503:
        assert daemon.log.count("traces could not be sent") == 1


def test_the_library_is_not_imported_without_an_endpoint(tmp_path: Path) -> None:
    code = "import sys, mailsvc.tap; print([name for name in sys.modules if name.startswith(('opentelemetry', 'google'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from mailsvc.runtime.tracing import start_tracing
    from mailsvc.settings.reader import SettingsError
    from mailsvc.settings.tracing import Tracing

    monkeypatch.setitem(sys.modules, "mailsvc.runtime.otlp", None)
    nothing: Any = None
    with pytest.raises(SettingsError, match=r"pip install 'mailsvc\[tracing\]'"):
        start_tracing(Tracing("http://127.0.0.1:1/v1/traces"), 1, "0", nothing, nothing)
    assert start_tracing(Tracing(), 1, "0", nothing, nothing) is None
