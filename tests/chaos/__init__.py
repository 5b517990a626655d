"""Fault injection: no mail is lost when processes, databases, networks and other servers fail."""
