"""DKIM, SPF, DMARC, MTA-STS and TLS reports: records and signatures. Pure: no DNS lookups, no key files."""
