-- Contacts of a batch that exist already. Empty cells change nothing, and nobody is subscribed again. Writes only what differs.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(rows)s) AS g(address text, first_name text, last_name text, unsubscribed boolean, properties jsonb)
)
UPDATE contacts c
SET first_name = coalesce(g.first_name, c.first_name), last_name = coalesce(g.last_name, c.last_name),
    unsubscribed = c.unsubscribed OR g.unsubscribed, properties = c.properties || g.properties, updated_at = %(now)s
FROM given g
WHERE c.account_id = %(account_id)s AND c.address = g.address
  AND (coalesce(g.first_name, c.first_name), coalesce(g.last_name, c.last_name), c.unsubscribed OR g.unsubscribed,
       c.properties || g.properties) IS DISTINCT FROM (c.first_name, c.last_name, c.unsubscribed, c.properties)
