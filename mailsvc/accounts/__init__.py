"""Accounts: onboarding, quotas, usage warnings, rate limits, and deleting data that is too old."""
