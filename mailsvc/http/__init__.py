"""THE API: requests become calls of `intake` and `store`, their results become JSON. No SQL, no SMTP, no mail format here.

`site` puts it together. On the way in: `channel` (octets to requests), `gate` (may this request come in?), `body`, `strictjson`,
`shapes` (JSON to values). One file per collection: `emails`, `health`, `sandbox`. On the way out: `answer`, `problem`, `views`.
"""
