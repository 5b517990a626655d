"""The reference pages of the documentation site, as Markdown, from the descriptions that the API itself is made of. `make docs` builds the
site from them and from docs/; the daemon does not use them.
"""
