"""Emails and their messages: accepting, reading, searching and exporting them."""
