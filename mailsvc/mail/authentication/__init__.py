"""DKIM, SPF, DMARC and MTA-STS records and signatures. Pure: no DNS look-ups, no keys in files."""
