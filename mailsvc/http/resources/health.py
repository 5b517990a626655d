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

CHECKS = {"type": "object", "additionalProperties": {"type": "string"}}  # by name: "ok", or what there is to remark

# Answers why it is not ready, or None when it is.
Check = Callable[[], Awaitable[str | None]]


@attrs.define(eq=False)
class Health:
    """`checks` by name; all must be passed to be ready. What `remarks` have to say is told with them, and refuses nothing."""

    app = collection()
    checks: Mapping[str, Check]
    remarks: Mapping[str, Check] = attrs.field(factory=dict)

    @app.route("/healthz", methods=["GET"])
    @told("Whether the process lives.", obj({"status": const("ok")}), key="none")
    async def alive(self, request: Request) -> bytes:
        return ok(request, {"status": "ok"})

    @app.route("/readyz", methods=["GET"])
    @told("Whether it is ready to serve.", obj({"status": const("ready"), "checks": CHECKS}), key="none")
    async def ready(self, request: Request) -> bytes:
        refused, remarked = await _asked(self.checks), await _asked(self.remarks)
        if any(refused.values()):
            what = "; ".join(f"{name}: {reason}" for name, reason in (refused | remarked).items() if reason is not None)
            raise Problem(503, "service_unavailable", f"Not ready: {what}", {"Retry-After": "1"})
        return ok(request, {"status": "ready", "checks": {name: reason or "ok" for name, reason in (refused | remarked).items()}})


async def _asked(checks: Mapping[str, Check]) -> dict[str, str | None]:
    """What each has to say, None: nothing."""
    found: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            found[name] = await check()
        except Exception:
            log.failure("the check {name} failed", name=name)
            found[name] = "cannot be checked"
    return found
