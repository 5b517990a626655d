"""The wire: SMTP in (framing, extensions, server, login) and SMTP out (client, stuffing, tls)."""
