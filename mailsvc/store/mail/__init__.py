"""Emails and their messages in SQL: accepting them, reading them back, searching and exporting them."""
