"""Signing in: passwords, links, passkeys, identity providers, second factors, and emails about them."""
