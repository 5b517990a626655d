"""Traces with the OpenTelemetry SDK, sent as OTLP over HTTP. Imported only if tracing is on (runtime/tracing).

Spans that ended are put into a queue of limited length, which a thread of its own sends. If the receiver is slow or gone, spans are
dropped; mail never waits for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any

import attrs
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from twisted.internet.defer import Deferred
from twisted.logger import Logger

QUEUE = 4096  # spans that wait to be sent; further ones are dropped
BATCH = 512  # spans in one request
EVERY = 1.0  # seconds between requests
TIMEOUT = 5.0  # seconds for one request with its retries
STOP = 2.0  # seconds that a shutdown waits for the last request
SILENCE = 60.0  # seconds between two lines in the log about spans that could not be sent

_KINDS = {"internal": trace.SpanKind.INTERNAL, "server": trace.SpanKind.SERVER, "client": trace.SpanKind.CLIENT}
_CONTEXT = TraceContextTextMapPropagator()


@attrs.frozen
class OtlpSpan:
    """One step of a trace."""

    span: trace.Span

    @property
    def traceparent(self) -> str:
        found = self.span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & trace.TraceFlags.SAMPLED:02x}"

    @property
    def recorded(self) -> bool:
        return self.span.is_recording()

    def end(self, at: float, facts: Mapping[str, str | int], error: str | None = None) -> None:
        if self.recorded:
            self.span.set_attributes(facts)
            if error is not None:
                self.span.set_status(trace.StatusCode.ERROR, error)
            self.span.end(round(at * 1e9))


@attrs.frozen
class OtlpTracing:
    """Begins spans, and sends those that ended."""

    provider: TracerProvider
    tracer: trace.Tracer

    @classmethod
    def to(cls, endpoint: str, sample: float, process: int, version: str) -> OtlpTracing:
        """Headers, such as those for authentication, come from OTEL_EXPORTER_OTLP_HEADERS."""
        _log_sparingly()
        return cls.using(OTLPSpanExporter(endpoint, timeout=TIMEOUT), sample, process, version)

    @classmethod
    def using(cls, exporter: SpanExporter, sample: float, process: int, version: str) -> OtlpTracing:
        names = {"service.name": "mailsvc", "service.version": version, "service.instance.id": str(process)}
        provider = TracerProvider(ParentBased(TraceIdRatioBased(sample)), Resource.create(names), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter, QUEUE, EVERY * 1000, BATCH))
        return cls(provider, provider.get_tracer("mailsvc"))

    def begin(self, name: str, at: float, parent: str | None = None, kind: str = "internal") -> OtlpSpan:
        context = _CONTEXT.extract({"traceparent": parent} if parent else {})
        return OtlpSpan(self.tracer.start_span(name, context, _KINDS[kind], start_time=round(at * 1e9)))

    async def stop(self, reactor: Any) -> None:
        """Send what is left, within a deadline: the library waits longer, in a thread that does not keep the process running."""
        stopped: Deferred[None] = Deferred()
        stopped.addTimeout(STOP, reactor, onTimeoutCancel=lambda result, seconds: None)

        def done() -> None:
            if not stopped.called:
                stopped.callback(None)

        def stop() -> None:
            self.provider.shutdown()
            reactor.callFromThread(done)

        threading.Thread(target=stop, name="traces", daemon=True).start()
        await stopped


class _Sparingly(logging.Handler):
    """What the library logs, in the daemon's log: one line a minute, because a receiver that is down causes one for each request."""

    log = Logger()
    _next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + SILENCE
            self.log.warn("traces could not be sent: {reason}", reason=record.getMessage())


def _log_sparingly() -> None:
    library = logging.getLogger("opentelemetry")
    library.setLevel(logging.WARNING)
    library.handlers, library.propagate = [_Sparingly()], False
