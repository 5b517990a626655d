"""Accounts, users and everything that proves who somebody is: keys, sessions, passkeys; quotas and the audit log."""
