"""OpenTelemetry traces: the interface that the API, intake, delivery and webhooks use, and how tracing is switched on.

One trace follows an email: the API request, its acceptance, each delivery attempt, each webhook. A trace goes from process to process with
the email, in its stored envelope. Spans have IDs and results, never addresses, subjects or other content. Without `tracing.endpoint` there
is no `Tracing`, and the library (runtime/otlp) is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mailsvc.runtime.lifecycle import Opened
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.tracing import Tracing as TracingSettings


class Span(Protocol):
    """One step of a trace. It is sent once it has ended."""

    @property
    def traceparent(self) -> str:
        """What the next step begins with (W3C Trace Context)."""

    @property
    def recorded(self) -> bool:
        """Whether the trace is among those that are sent."""

    def end(self, at: float, facts: Mapping[str, str | int], error: str | None = None) -> None:
        """It ended at the Unix time `at`. `error`: what went wrong."""


class Tracing(Protocol):
    """Begins spans. Nothing here waits or raises, whatever the receiver of the traces does."""

    def begin(self, name: str, at: float, parent: str | None = None, kind: str = "internal") -> Span:
        """A step that began at the Unix time `at`. `parent`: the traceparent to continue; otherwise a new trace begins."""


def start_tracing(settings: TracingSettings, process: int, version: str, reactor: Any, opened: Opened) -> Tracing | None:
    """None if tracing is off. Raises SettingsError if the library is not installed."""
    if settings.endpoint is None:
        return None
    try:
        from mailsvc.runtime.otlp import OtlpTracing
    except ImportError:
        raise SettingsError("The setting tracing.endpoint needs OpenTelemetry. Install it: pip install 'mailsvc[tracing]'.") from None
    tracing = OtlpTracing.to(settings.endpoint, settings.sample, process, version)
    opened.add("traces", lambda: tracing.stop(reactor))
    return tracing
