-- A delivery that bounces later counts as bounced, as in the other metrics. Emails of one sending domain can be rare among those of the account:
-- the number of those that are scanned for them is bounded too.
WITH scanned AS MATERIALIZED (
    SELECT e.email_id, CASE WHEN %(domain)s::uuid IS NULL OR e.domain_id = %(domain)s THEN e.recipients END AS recipients FROM emails e
    WHERE e.account_id = %(account)s AND e.email_id >= %(since)s AND e.email_id < %(until)s AND e.source NOT IN {service}
    ORDER BY e.email_id DESC LIMIT %(scanned)s
), newest AS MATERIALIZED (
    SELECT * FROM scanned WHERE recipients IS NOT NULL ORDER BY email_id DESC LIMIT %(looked)s
), told AS (
    SELECT lower(split_part(n.recipients[v.recipient + 1], '@', -1)) AS name, bool_or(v.type = 'email.delivered') AS delivered,
           bool_or(v.type = 'email.bounced') AS bounced, bool_or(v.type = 'email.complained') AS complained,
           bool_or(v.type = 'email.delivery_delayed') AS deferred
    FROM newest n CROSS JOIN LATERAL (
        SELECT v.recipient, v.type FROM events v WHERE v.account_id = %(account)s AND v.email_id = n.email_id AND v.recipient IS NOT NULL
        AND v.type IN ('email.delivered', 'email.bounced', 'email.complained', 'email.delivery_delayed') OFFSET 0
    ) v
    GROUP BY n.email_id, v.recipient, 1
)
SELECT (SELECT count(*) FROM newest), (SELECT count(*) FROM scanned), c.* FROM (SELECT) AS one LEFT JOIN (
    SELECT name, count(*) FILTER (WHERE delivered AND NOT bounced), count(*) FILTER (WHERE bounced), count(*) FILTER (WHERE deferred),
           count(*) FILTER (WHERE complained)
    FROM told GROUP BY name
) c ON true
