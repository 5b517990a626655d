"""The audience: contacts, imports, segments, topics, properties, and the preference page. The API does the same."""
