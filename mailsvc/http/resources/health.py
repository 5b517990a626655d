"""What load balancers, supervisors and proxies ask: liveness and readiness, and whether the account of a key is in this cell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
from twisted.logger import Logger

from mailsvc.http.answer import collection, ok
from mailsvc.http.operations import operation
from mailsvc.http.problem import Problem
from mailsvc.http.request import Request
from mailsvc.http.views import View, const, free

log = Logger()

ALIVE = View("Alive", {"status": const("ok", "Always `ok`.")})
READY = View(
    "Ready",
    {
        "status": const("ready", "Always `ready`."),
        "checks": free(
            "By name: `ok`, or what an operator should know.", {"database": "ok"}, type="object", additionalProperties={"type": "string"}
        ),
    },
)

HERE = View("Cell", {"status": const("here", "Always `here`.")})

# Returns why the process is not ready, or None.
Check = Callable[[], Awaitable[str | None]]


@attrs.define(eq=False)
class Health:
    """The process is ready if all `checks` pass. The results of `remarks` are shown with them and have no effect."""

    app = collection()
    checks: Mapping[str, Check]
    remarks: Mapping[str, Check] = attrs.field(factory=dict)

    @app.route("/healthz", methods=["GET"])
    @operation("Check liveness", "Responds while the process runs.", ALIVE, key="none")
    async def alive(self, request: Request) -> bytes:
        return ok(request, ALIVE.show())

    @app.route("/readyz", methods=["GET"])
    @operation("Check readiness", "Whether the process can serve requests. 503 if not, with the reason.", READY, key="none")
    async def ready(self, request: Request) -> bytes:
        failed, remarks = await _results(self.checks), await _results(self.remarks)
        if any(failed.values()):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in (failed | remarks).items() if reason is not None)
            raise Problem(503, "service_unavailable", f"Not ready: {reasons}", {"Retry-After": "1"})
        return ok(request, READY.show(checks={name: reason or "ok" for name, reason in (failed | remarks).items()}))

    @app.route("/cell", methods=["GET"])
    @operation(
        "Find the cell of a key",
        "Whether the account of the API key is in the cell that this process serves. If it has moved, 421 names its cell. Proxies ask this,"
        " and it does not count towards the account's rate limit.",
        HERE,
        key="any",
    )  # fmt: skip
    async def cell(self, request: Request) -> bytes:
        return ok(request, HERE.show())


async def _results(checks: Mapping[str, Check]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            found[name] = await check()
        except Exception:
            log.failure("Check {name} failed", name=name)
            found[name] = "cannot be checked"
    return found
