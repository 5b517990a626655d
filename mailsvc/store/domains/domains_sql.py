"""SQL statements for store/domains/domains, checks and claims, and the columns of their values."""

from __future__ import annotations

from mailsvc.store.sql import Columns, statement

DOMAIN = Columns.of(
    id="id",
    account_id="account_id",
    name="name",
    region="region",
    status="status",
    trusted="trusted_at IS NOT NULL",
    return_path="return_path",
    signs_with="signs_with",
    tls="tls",
    created_at="created_at",
    sending="sending",
    receiving="receiving",
    delegated="delegated",
    records="records",
    advice="advice",
    since="since",
    checks="checks",
    checked_at="checked_at",
    next_check_at="next_check_at",
    lost_at="lost_at",
    pool="coalesce(pool, (SELECT a.pool FROM accounts a WHERE a.id = account_id))",
    open_tracking="open_tracking",
    click_tracking="click_tracking",
    tracking_subdomains="tracking_subdomains",
    encrypted="coalesce((SELECT a.encrypt_bodies FROM accounts a WHERE a.id = account_id), false)",
    untracked="coalesce((SELECT 'tracking' = ANY (a.minimize) FROM accounts a WHERE a.id = account_id), false)",
)
_FROM = f"SELECT {DOMAIN} FROM domains WHERE "
FIND = _FROM + "account_id = %s AND name = %s"
# Whether the domains of an account are in another cell: it has left this one, or is about to arrive here.
MOVED = "SELECT FROM account_moves WHERE account_id = %s AND phase IN ('left', 'arriving')"
GET = _FROM + "id = %s"
OWN = _FROM + "account_id = %s AND id = %s"
# Several accounts can have a name: the verified one comes first, then the oldest.
BY_NAME = _FROM + "name = %s ORDER BY status = 'verified' DESC, trusted_at IS NOT NULL DESC, id"
HOLDER = _FROM + "name = %s AND id <> %s AND (status = 'verified' OR trusted_at IS NOT NULL)"
OLDER = _FROM + "account_id = %s AND (%s::uuid IS NULL OR id < %s) ORDER BY id DESC LIMIT %s"
NEWER = _FROM + "account_id = %s AND id > %s ORDER BY id LIMIT %s"
EVERY = _FROM + "true ORDER BY (SELECT a.number FROM accounts a WHERE a.id = account_id), id DESC"
ADD = f"""
INSERT INTO domains (
    id, account_id, name, region, created_at, return_path, tls, sending, receiving, delegated, open_tracking, click_tracking,
    tracking_subdomains
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING {DOMAIN}
"""
# A tracking subdomain is moved to the end. Its record is checked soon.
UPDATE = f"""
UPDATE domains SET tls = coalesce(%(tls)s, tls), sending = coalesce(%(sending)s, sending), receiving = coalesce(%(receiving)s, receiving),
    open_tracking = coalesce(%(open_tracking)s, open_tracking), click_tracking = coalesce(%(click_tracking)s, click_tracking),
    tracking_subdomains = CASE WHEN %(tracking_subdomain)s::text IS NULL THEN tracking_subdomains
        ELSE array_append(array_remove(tracking_subdomains, %(tracking_subdomain)s::text), %(tracking_subdomain)s::text) END,
    next_check_at = CASE WHEN next_check_at IS NULL OR %(tracking_subdomain)s::text IS NULL THEN next_check_at
        ELSE least(next_check_at, %(now)s) END
WHERE id = %(id)s RETURNING {DOMAIN}
"""
DELETE = "DELETE FROM domains WHERE id = %s"
TRUST = f"""
UPDATE domains SET trusted_at = CASE WHEN %s THEN coalesce(trusted_at, %s) END WHERE account_id = %s AND name = %s RETURNING {DOMAIN}
"""

# The required DNS records change with it, so the domain is checked soon.
SIGNS = f"""
UPDATE domains SET signs_with = %s, next_check_at = CASE WHEN next_check_at IS NOT NULL THEN least(next_check_at, %s) END
WHERE id = %s RETURNING {DOMAIN}
"""

# So do those of its region.
MOVE = f"""
UPDATE domains SET region = %s, next_check_at = CASE WHEN next_check_at IS NOT NULL THEN least(next_check_at, %s) END
WHERE id = %s RETURNING {DOMAIN}
"""

ADD_KEY = """
INSERT INTO dkim_keys (id, domain_id, selector, algorithm, public_key, sealed_key, state, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
SIGNING = """
SELECT k.id, k.selector, k.algorithm, k.sealed_key
FROM dkim_keys k JOIN domains d ON d.id = k.domain_id
WHERE k.domain_id = %s AND k.state = 'signing' AND k.algorithm = ANY (d.signs_with)
ORDER BY array_position(d.signs_with, k.algorithm), k.id
"""
KEY = Columns.of(
    id="k.id",
    selector="k.selector",
    algorithm="k.algorithm",
    public="k.public_key",
    state="k.state",
    created_at="k.created_at",
    changed_at="coalesce(k.changed_at, k.created_at)",
)
PUBLISHED = f"SELECT {KEY} FROM dkim_keys k WHERE k.domain_id = %s AND k.state <> 'retired' ORDER BY k.id"
DELEGATED = f"""
SELECT DISTINCT ON (d.id, k.selector) d.id, {KEY}
FROM dkim_keys k JOIN domains d ON d.id = k.domain_id WHERE d.delegated ORDER BY d.id, k.selector, k.id DESC
"""
# The private half of a retired key is destroyed.
MOVE_KEY = """
UPDATE dkim_keys SET state = %s, changed_at = %s, sealed_key = CASE WHEN %s THEN ''::bytea ELSE sealed_key END
WHERE domain_id = %s AND id = %s
"""

HISTORY = "SELECT at, what FROM domain_history WHERE domain_id = %s ORDER BY id DESC LIMIT %s"
ADD_HISTORY = "INSERT INTO domain_history (id, domain_id, at, what) VALUES (%s, %s, %s, %s)"

TAKE_DUE = statement("mailsvc.store.domains", "take_due", columns=DOMAIN)
RESCHEDULE = f"UPDATE domains SET next_check_at = %s WHERE id = %s RETURNING {DOMAIN}"
RECORD = f"""
UPDATE domains SET status = %s, records = %s, advice = %s, since = %s, checks = %s, checked_at = %s, next_check_at = %s,
    lost_at = CASE WHEN %s = 'verified' THEN NULL ELSE lost_at END
WHERE id = %s AND next_check_at IS NOT DISTINCT FROM %s RETURNING {DOMAIN}
"""
REQUEST_VERIFICATION = f"""
UPDATE domains SET status = %s, since = %s, checks = %s, next_check_at = %s WHERE id = %s RETURNING {DOMAIN}
"""

# Another account verified the name, so this domain can no longer send, even if it was trusted.
LOSE = f"""
UPDATE domains SET status = 'failed', trusted_at = NULL, lost_at = %s, since = NULL, checks = 0, next_check_at = NULL,
    records = %s
WHERE id = %s RETURNING {DOMAIN}
"""

# The number of domains, and the adds in the hour before `now`.
USED = """
SELECT count(*), count(*) FILTER (WHERE status <> 'verified' AND trusted_at IS NULL),
       coalesce((SELECT adds FROM domain_adds WHERE account_id = %(account)s AND since > %(before)s), 0),
       (SELECT since FROM domain_adds WHERE account_id = %(account)s AND since > %(before)s)
FROM domains WHERE account_id = %(account)s
"""
# Also serializes the adds of an account, so that counts are exact.
COUNT_ADD = """
INSERT INTO domain_adds AS a (account_id, since, adds) VALUES (%(account)s, %(now)s, 1)
ON CONFLICT (account_id) DO UPDATE SET
    adds = CASE WHEN a.since > %(before)s THEN a.adds + 1 ELSE 1 END, since = CASE WHEN a.since > %(before)s THEN a.since ELSE %(now)s END
"""

CLAIM = Columns.named(
    "id", "domain_id", "account_id", "name", "region", "token", "status", "failure_reason", "created_at", "expires_at"
)  # fmt: skip
CLAIM_OF = f"SELECT {CLAIM} FROM domain_claims WHERE account_id = %s AND domain_id = %s"
ADD_CLAIM = f"""
INSERT INTO domain_claims ({CLAIM}) VALUES (%s, %s, %s, %s, %s, %s, %s, NULL, %s, %s)
ON CONFLICT (domain_id) DO UPDATE SET id = excluded.id, token = excluded.token, status = excluded.status, failure_reason = NULL,
    created_at = excluded.created_at, expires_at = excluded.expires_at
RETURNING {CLAIM}
"""
SETTLE_CLAIM = """
UPDATE domain_claims SET status = %s, failure_reason = %s WHERE domain_id = %s AND status IN ('pending', 'blocked')
"""
SUPERSEDE_CLAIMS = """
UPDATE domain_claims SET status = 'superseded' WHERE name = %s AND domain_id <> %s AND status IN ('pending', 'blocked')
"""
FORGET_CLAIMS = "DELETE FROM domain_claims WHERE account_id = %s AND expires_at < %s"
