"""Privileges of the daemon's database role: it can add and read lines of the audit log and anchors, and not change or delete them.

The tables of the audit log belong to another role, which also runs migrations; everything else belongs to the daemon's role, which
creates and drops partitions. How to set this up: docs/operations.md.
"""

from __future__ import annotations

from mailsvc.store.postgres.pool import Pool, Transaction

# What the daemon's role may do with the tables that it does not own.
GRANTS = {
    "audit": "SELECT, INSERT",
    "audit_anchors": "SELECT, INSERT",
    "audit_details": "SELECT, INSERT, UPDATE",  # texts are erased
    "audit_heads": "SELECT, INSERT, UPDATE",
    "audit_sent": "SELECT, INSERT, UPDATE",
    "audit_targets": "SELECT, INSERT, UPDATE",
    "audit_entries": "SELECT",
}
FUNCTION = "audit_is_append_only()"

ROLE = "SELECT pg_has_role(current_user, oid, 'MEMBER'), rolsuper, rolname = current_user FROM pg_roles WHERE rolname = %s"
# Sequences of columns follow their table.
OTHERS = """
SELECT format('ALTER TABLE %%I OWNER TO %%I', c.relname, r.rolname)
FROM pg_class c JOIN pg_roles r ON r.rolname = %s
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> r.oid AND c.relname <> ALL (%s)
  AND NOT (c.relkind = 'S' AND EXISTS (
      SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
  ))
ORDER BY c.relname
"""
STATEMENTS = """
SELECT format(s, %s, current_user, current_database()) FROM unnest(%s) WITH ORDINALITY AS n (s, i) ORDER BY i
"""
CHECK = """
SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       has_table_privilege('audit', 'UPDATE, DELETE, TRUNCATE, TRIGGER')
       OR has_table_privilege('audit_anchors', 'UPDATE, DELETE, TRUNCATE, TRIGGER'),
       pg_has_role((SELECT proowner FROM pg_proc WHERE proname = 'audit_is_append_only'), 'MEMBER')
       OR pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'audit'::regclass), 'MEMBER'),
       pg_has_role((SELECT datdba FROM pg_database WHERE datname = current_database()), 'MEMBER')
       OR pg_has_role((SELECT nspowner FROM pg_namespace WHERE nspname = 'public'), 'MEMBER')
"""
SUPERUSER = "it is a superuser"
CAN_CHANGE = "it has privileges to change or delete lines"
OWNS = "it owns the tables, or is a member of the role that does"
OWNS_ALL = "it owns the database or its schema"


class CannotProtect(Exception):
    """Why the privileges cannot be set, as a sentence."""


async def protect(pool: Pool, role: str) -> None:
    """Give the audit log to the current role, everything else to the daemon's role, and to that what it needs. Raises CannotProtect."""

    async def change(tx: Transaction) -> None:
        found = await tx.rows(ROLE, (role,))
        if not found:
            raise CannotProtect(f"There is no role {role!r}.")
        member, superuser, same = found[0]
        if superuser:
            raise CannotProtect(f"The role {role!r} is a superuser, so nothing can be protected from it.")
        if same or not member:
            raise CannotProtect("Connect as a superuser, or as another role that is a member of this one.")
        await tx.run("SET LOCAL lock_timeout = 5000")
        for (statement,) in await tx.rows(OTHERS, (role, list(GRANTS))):
            await tx.run(statement)
        wanted = ["ALTER DATABASE %3$I OWNER TO %2$I", "ALTER SCHEMA public OWNER TO %2$I", f"ALTER FUNCTION {FUNCTION} OWNER TO %2$I"]
        wanted += ["GRANT CONNECT, TEMPORARY ON DATABASE %3$I TO %1$I", "GRANT USAGE, CREATE ON SCHEMA public TO %1$I"]
        for table, privileges in GRANTS.items():
            wanted += [f"ALTER TABLE {table} OWNER TO %2$I", f"REVOKE ALL ON {table} FROM PUBLIC, %1$I"]
            wanted += [f"GRANT {privileges} ON {table} TO %1$I"]
        for (statement,) in await tx.rows(STATEMENTS, (role, wanted)):
            await tx.run(statement)

    await pool.transact(change)


async def weaknesses(pool: Pool) -> list[str]:
    """Why the current role can change the audit log; empty if it cannot."""
    [flags] = await pool.rows(CHECK)
    return [why for why, flag in zip((SUPERUSER, CAN_CHANGE, OWNS, OWNS_ALL), flags, strict=True) if flag]
