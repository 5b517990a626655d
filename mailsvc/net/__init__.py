"""Networking apart from SMTP: DNS, URLs from customers, HTTP requests to them, and which addresses may be connected to."""
