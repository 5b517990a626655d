"""Serves tracked links, pixels and images of broadcasts, and tells reverse proxies which hosts of customers need a certificate."""
