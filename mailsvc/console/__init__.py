"""The operator's console, on a listener of its own, and the public status page. It shows no content of customers.

Who signs in: store/console/operators. A page: a method with `@page` in a section, which assembly.py lists.
"""
