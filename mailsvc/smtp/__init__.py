"""The SMTP protocol: receiving (server) and sending (client)."""
