"""Bounces and complaints that arrive as mail at our return paths, and what a server's reply means.

`intake` takes returned mail, `reading` parses it, `diagnosis` classifies replies. This package never sends mail.
"""
