-- A running check is due again later, in case its process dies; its result is only recorded if that time is unchanged.
-- Each account gets at most its share, including running checks; accounts take turns.
UPDATE domains SET next_check_at = %(until)s WHERE id IN (
    SELECT id FROM domains WHERE next_check_at <= %(now)s AND id = ANY (ARRAY(
        SELECT id FROM (
            SELECT o.id, o.next_check_at,
                   row_number() OVER (PARTITION BY o.account_id ORDER BY o.next_check_at, o.id) + coalesce(b.checks, 0) AS nth
            FROM (
                SELECT id, account_id, next_check_at FROM domains
                WHERE next_check_at <= %(now)s AND account_id <> ALL (%(full)s::uuid[]) ORDER BY next_check_at LIMIT 1000
            ) o LEFT JOIN unnest(%(accounts)s::uuid[], %(checks)s::integer[]) AS b(account_id, checks) USING (account_id)
        ) turns WHERE nth <= %(share)s ORDER BY nth, next_check_at LIMIT %(limit)s
    )) FOR UPDATE SKIP LOCKED
) RETURNING {columns}
