"""Customers: onboarding, plans and quotas, usage, rate limits, retention, and the mail that the service itself sends to them."""
