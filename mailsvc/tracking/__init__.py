"""Open and click tracking in the daemon: which emails are tracked, which hosts are served, and storing opens and clicks.

Tokens and rules: mail/tracking.
"""
