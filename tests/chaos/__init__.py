"""Faults on purpose: what becomes of mail when processes, databases, networks and other servers misbehave."""
