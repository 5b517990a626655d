"""Accounts: onboarding, archives, quotas, rate limits, holds, mails to admins and operators, and deleting data that is too old."""
