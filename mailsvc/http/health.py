"""Is it alive, is it ready? For load balancers and supervisors, without a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
from twisted.logger import Logger

from mailsvc.http.answer import collection, ok
from mailsvc.http.describe import const, obj, told
from mailsvc.http.problem import Problem
from mailsvc.http.request import Request

log = Logger()

# Answers why it is not ready, or None when it is.
Check = Callable[[], Awaitable[str | None]]


@attrs.define(eq=False)
class Health:
    """`checks` by name; all must be passed to be ready."""

    app = collection()
    checks: Mapping[str, Check]

    @app.route("/healthz", methods=["GET"])
    @told("Whether the process lives.", obj({"status": const("ok")}), key="none")
    async def alive(self, request: Request) -> bytes:
        return ok(request, {"status": "ok"})

    @app.route("/readyz", methods=["GET"])
    @told("Whether it is ready to serve.", obj({"status": const("ready")}), key="none")
    async def ready(self, request: Request) -> bytes:
        waiting = {}
        for name, check in self.checks.items():
            try:
                reason = await check()
            except Exception:
                log.failure("the check {name} failed", name=name)
                reason = "cannot be checked"
            if reason is not None:
                waiting[name] = reason
        if waiting:
            what = "; ".join(f"{name}: {reason}" for name, reason in waiting.items())
            raise Problem(503, "service_unavailable", f"Not ready: {what}", {"Retry-After": "1"})
        return ok(request, {"status": "ready"})
