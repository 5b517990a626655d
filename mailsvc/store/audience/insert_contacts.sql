-- New contacts of a batch. Those whose address exists are left out.
INSERT INTO contacts (account_id, id, address, email, first_name, last_name, unsubscribed, properties, hash, import_id, created_at, updated_at)
SELECT %(account_id)s, g.id, g.address, g.email, g.first_name, g.last_name, g.unsubscribed, g.properties, decode(g.hash, 'hex'),
       %(import_id)s, %(now)s, %(now)s
FROM json_to_recordset(%(rows)s) AS g(
    id uuid, address text, email text, first_name text, last_name text, unsubscribed boolean, properties jsonb, hash text
)
ON CONFLICT DO NOTHING
RETURNING id
