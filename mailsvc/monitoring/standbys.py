"""What is lost if a standby of Postgres takes over, for `mailsvc doctor`."""

from __future__ import annotations

from mailsvc.monitoring.doctor import Finding
from mailsvc.monitoring.installation import ALONE
from mailsvc.store.postgres.server_settings import Standbys
from mailsvc.units import size

CHECK = "standby"


def finding(standbys: Standbys, hosts: int | None) -> Finding:
    """`hosts`: how many servers database.url lists. None for a cell: Citus says where its node is."""
    count = f"{standbys.connected} connected"
    if standbys.lag:
        count += f", {size(standbys.lag)} behind"
    if standbys.synchronous and not standbys.connected:
        return Finding(CHECK, "error", "Commits wait for a standby (synchronous_standby_names), and none is connected.", _START)
    if standbys.synchronous:
        text = f"{count}. Commits wait for it: if a synchronous standby takes over, it has everything that was acknowledged."
        return Finding(CHECK, "ok", text) if hosts != 1 else Finding(CHECK, "warning", text, _ONE_HOST)
    if standbys.connected:
        text = f"{count}. Commits do not wait for it: if it takes over, the last emails may be missing, and all mail is held."
        return Finding(CHECK, "warning", text, "Set synchronous_standby_names on the primary (docs/operations.md, Failover).")
    if hosts is not None and hosts > 1:
        return Finding(CHECK, "warning", "database.url lists several servers, but no standby is connected.", "Start the standby.")
    return Finding(CHECK, "ok", "None is connected: if the server is lost, restore a backup.")


def waiting(standbys: Standbys) -> Finding:
    """A commit has been waiting for long."""
    which = "it does not answer, or has another name" if standbys.connected else "none is connected"
    return Finding("database", "error", f"Commits wait for a standby (synchronous_standby_names), and {which}.", f"{_START} {ALONE}")


_START = "Start a standby, or clear synchronous_standby_names: until then, no mail is accepted."
_ONE_HOST = "List all servers in database.url (docs/operations.md, Failover)."
