"""The audience: contacts, their properties, segments and topics, imports, and the page of a double opt-in."""
