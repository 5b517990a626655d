"""Every setting: the schema, the reader, the checks, and the plans. Passing settings on to each part of the daemon: wiring.py."""
