"""The HTTP API: requests become calls of `intake` and `store`, their results become JSON. No SQL, SMTP or mail format here.

`api` and `site` put it together. Incoming: `channel` (bytes to requests), `gate` (which requests are admitted), `strict_json` and
`reading` (body to values), `fields` (what a body can contain). Outgoing: `views` (what a response contains), `answer`, `problem`.
`resources/` has a module for each collection, and `openapi` describes all of them.
"""
