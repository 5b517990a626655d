"""From a destination to an open SMTP connection: routes, source addresses, TLS policy (MTA-STS, DANE) and CHUNKING."""
