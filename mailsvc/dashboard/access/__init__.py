"""Which permission each page of the dashboard requires. Serving pages is in page.py, the roles are in store/people/roles."""
