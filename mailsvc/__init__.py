"""mailsvc: a transactional email delivery service on Twisted and Postgres.

`tap.py` shows the whole daemon; `docs/architecture.md` describes the path of an email.
"""

__version__ = "0.2.0"
