"""Serves tracked links and pixels, and tells reverse proxies which hosts of customers need a certificate."""
