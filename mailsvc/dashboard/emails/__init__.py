"""The pages under Emails: the list, one email, its preview and timeline, resending and export."""
