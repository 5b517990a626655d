"""DKIM, SPF, DMARC and MTA-STS: records and signatures. Pure: no DNS lookups, no key files."""
