"""The settings of OpenTelemetry traces. What is traced: runtime/tracing."""

from __future__ import annotations

import re

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


def _url(value: str) -> str | None:
    good = re.fullmatch(r"https?://[^\s?#@]+", value)
    return None if good else 'expected a URL, such as "http://127.0.0.1:4318/v1/traces"'


@attrs.frozen
class Tracing:
    """OpenTelemetry traces."""

    endpoint: str | None = setting(
        None,
        "Where to send traces, as OTLP over HTTP. If not set, nothing is traced. docs/operations.md explains what they contain.",
        check=_url, example="http://127.0.0.1:4318/v1/traces",
    )  # fmt: skip
    sample: float = setting(
        1.0,
        "The share of requests that are traced. A request with the header traceparent is traced if its caller traces it.",
        check=checks.between(0, 1),
    )
