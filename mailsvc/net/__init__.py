"""The network outside SMTP: DNS, fetching URLs that customers gave us, and which addresses may be connected to."""
