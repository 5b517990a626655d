"""Secrets at rest: encrypted with AES-256-GCM under the keys of a file, and encrypted again when the keys rotate."""
