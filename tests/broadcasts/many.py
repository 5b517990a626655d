"""Many contacts of a daemon's account, put into its tables at once."""

from __future__ import annotations

import psycopg2

_ADD = """
INSERT INTO contacts (account_id, id, address, email, first_name, hash, created_at, updated_at)
SELECT account_id, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'c' || n || '@example.net', 'c' || n || '@example.net',
       'N' || n, decode(md5(n::text), 'hex'), now(), now()
FROM segments, generate_series(1, %(count)s) n WHERE id = %(segment)s ON CONFLICT DO NOTHING
"""
_JOIN = """
INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at)
SELECT account_id, %(segment)s, id, now() FROM contacts ORDER BY id LIMIT %(count)s
"""


def fill(database: str, segment: str, count: int) -> None:
    """Puts c1@example.net, c2@example.net, … into a segment. Another segment gets the same contacts."""
    connection = psycopg2.connect(database)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in (_ADD, _JOIN):
            cursor.execute(statement, {"segment": segment, "count": count})
        cursor.execute("VACUUM ANALYZE contacts, contact_segments")
    connection.close()
