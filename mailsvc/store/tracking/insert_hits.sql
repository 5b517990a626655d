-- Opens and clicks: as events in the history of their emails and for the event ledger, and counted by email, link and broadcast. The first
-- of an email is also counted as unique: by rows of an internal type, so that the ledger does nothing else with them. Everything is
-- written in the order of its keys, so that several processes do not wait for each other in a circle.
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS x(
        shard smallint, account_id uuid, email_id uuid, event_id uuid, domain_id uuid, broadcast_id uuid, kind text, target uuid, url text,
        machine boolean, at timestamptz, data jsonb
    )
), told AS (
    INSERT INTO events (account_id, email_id, event_id, type, at, data)
    SELECT account_id, email_id, event_id, 'email.' || kind, at, data FROM new
), added AS MATERIALIZED (
    SELECT account_id, email_id, kind, target, min(url) AS url, count(*) AS count, count(*) FILTER (WHERE NOT machine) AS people,
           min(at) AS first_at, min(at) FILTER (WHERE NOT machine) AS people_at
    FROM (
        SELECT account_id, email_id, kind, '{none}'::uuid AS target, NULL AS url, machine, at FROM new
        UNION ALL
        SELECT account_id, email_id, 'link', target, url, machine, at FROM new WHERE kind = 'clicked'
    ) x
    GROUP BY 1, 2, 3, 4
), counted AS (
    INSERT INTO hits AS h (account_id, email_id, kind, target, url, count, people, first_at, people_at)
    SELECT account_id, email_id, kind, target, url, count, people, first_at, people_at FROM added ORDER BY 1, 2, 3, 4
    ON CONFLICT (account_id, email_id, kind, target) DO UPDATE
    SET count = h.count + excluded.count, people = h.people + excluded.people, people_at = coalesce(h.people_at, excluded.people_at)
    RETURNING account_id, email_id, kind, target, count, people
), changed AS MATERIALIZED (
    SELECT a.*, c.count = a.count AS first, a.people > 0 AND c.people = a.people AS first_person
    FROM counted c JOIN added a USING (account_id, email_id, kind, target)
), emails_of AS MATERIALIZED (
    SELECT DISTINCT ON (account_id, email_id) account_id, email_id, shard, domain_id, broadcast_id FROM new
), linked AS (
    INSERT INTO broadcast_links AS b (account_id, broadcast_id, target, url, clicks, unique_clicks, people_clicks, unique_people)
    SELECT account_id, broadcast_id, target, min(url), sum(count), count(*) FILTER (WHERE first), sum(people),
           count(*) FILTER (WHERE first_person)
    FROM changed JOIN emails_of USING (account_id, email_id)
    WHERE kind = 'link' AND broadcast_id IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (account_id, broadcast_id, target) DO UPDATE
    SET clicks = b.clicks + excluded.clicks, unique_clicks = b.unique_clicks + excluded.unique_clicks,
        people_clicks = b.people_clicks + excluded.people_clicks, unique_people = b.unique_people + excluded.unique_people
)
INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
SELECT shard, account_id, email_id, event_id, domain_id, 'email.' || kind, at, 1, 'email.' || kind || CASE WHEN machine THEN '.machine' ELSE '' END
FROM new
UNION ALL
SELECT e.shard, account_id, email_id, email_id, e.domain_id, 'email.canceled', u.at, 1, 'email.' || c.kind || u.suffix
FROM changed c JOIN emails_of e USING (account_id, email_id)
CROSS JOIN LATERAL (VALUES (c.first, c.first_at, '.unique'), (c.first_person, c.people_at, '.unique.people')) AS u(counts, at, suffix)
WHERE c.kind <> 'link' AND u.counts
