"""A stand-in for an OpenTelemetry collector: it speaks OTLP over HTTP on loopback, and keeps the spans. It is not a collector."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from tests.end_to_end.local_server import LocalServer, QuietHandler


@attrs.frozen
class Received:
    """A span. `parent`: the ID of the span that it follows, or "". `seconds`: how long it took."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    seconds: float
    error: str
    facts: dict[str, Any]


class Collector(LocalServer):
    """`answer`: the status of its responses; None: it never responds. `raw`: the bytes of all requests."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.raw = b""
        self.answer: int | None = 200
        collector = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                with collector.arrived:
                    collector.raw += body
                    collector.spans += read(body) if self.path == "/v1/traces" else []
                    collector.arrived.notify_all()
                if collector.answer is None:
                    collector.over.wait(60)
                    return
                response = ExportTraceServiceResponse().SerializeToString()
                self.respond(collector.answer, "application/x-protobuf", response)

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"{self.origin}/v1/traces"

    def wait(self, enough: Callable[[list[Received]], bool], seconds: float = 30) -> list[Received]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: enough(self.spans), seconds), self.spans
            return list(self.spans)


def read(body: bytes) -> list[Received]:
    request, found = ExportTraceServiceRequest.FromString(body), []
    for resource in request.resource_spans:
        service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                facts = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
                seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                found.append(Received(service, span.name, *ids, seconds, span.status.message, facts))
    return found
