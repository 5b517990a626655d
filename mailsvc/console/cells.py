"""The page about the cells and nodes of a Citus cluster. Creating and moving cells: `mailsvc cell`."""

from __future__ import annotations

import attrs

from mailsvc.console.serving import HOME, ConsoleContext, ConsolePage, page
from mailsvc.dashboard.page import PageError
from mailsvc.runtime.offload import InThread
from mailsvc.store.cells.nodes import Cluster, Unreachable
from mailsvc.store.cells.views import NotHere

CELLS = f"{HOME}/cells"


@attrs.define(eq=False)
class CellPages:
    """`cluster`: None without cells. `cell`: the one of this process."""

    context: ConsoleContext
    cluster: Cluster | None
    cell: str | None
    in_thread: InThread

    @page(CELLS)
    async def shown(self, request: ConsolePage) -> bytes:
        if self.cluster is None:
            return request.render("cells.html", cells=[], nodes=[], own=None)
        try:
            cells, nodes = await self.in_thread(self.cluster.cells), await self.in_thread(self.cluster.nodes)
        except (Unreachable, NotHere) as error:
            raise PageError(503, "Cluster unreachable", str(error)) from None
        return request.render("cells.html", cells=cells, nodes=nodes, own=self.cell)
