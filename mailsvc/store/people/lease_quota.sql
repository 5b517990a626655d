-- A new period starts at zero; a process whose clock is behind leases from the new one. An account without a row starts with what it sent in
-- this period, and so does one whose row is of a period that is still to come, because the clock was set back. A higher limit has warnings of
-- its own.
INSERT INTO quota AS q (account_id, period, starts, most, taken, granted)
SELECT %(account_id)s, %(period)s, %(starts)s, %(most)s, f.used + f.granted, f.granted
FROM (
    SELECT u.used, CASE WHEN %(most)s - u.used >= %(need)s THEN least(%(wanted)s, %(most)s - u.used) ELSE 0 END AS granted
    FROM (
        SELECT CASE WHEN EXISTS (
            SELECT FROM quota WHERE account_id = %(account_id)s AND period = %(period)s AND starts <= %(latest)s
        ) THEN 0 ELSE (
            SELECT coalesce(sum(count), 0) FROM rollups
            WHERE account_id = %(account_id)s AND hour >= %(starts)s::date::timestamp AT TIME ZONE 'UTC' AND type = 'email.sent'
        ) END AS used
    ) u
) f
ON CONFLICT (account_id, period) DO UPDATE SET
    starts = CASE WHEN {other} THEN excluded.starts ELSE q.starts END,
    most = excluded.most,
    warned = CASE WHEN {other} OR q.most < excluded.most THEN 0 ELSE q.warned END,
    taken = CASE
        WHEN {other} THEN excluded.taken
        ELSE q.taken + CASE WHEN %(most)s - q.taken >= %(need)s THEN least(%(wanted)s, %(most)s - q.taken) ELSE 0 END
    END,
    granted = CASE
        WHEN {other} THEN excluded.granted
        ELSE CASE WHEN %(most)s - q.taken >= %(need)s THEN least(%(wanted)s, %(most)s - q.taken) ELSE 0 END
    END
RETURNING granted, taken
