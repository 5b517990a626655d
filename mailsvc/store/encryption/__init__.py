"""Secrets at rest: sealed with AES-256-GCM under the keys of a file, and resealed when the keys rotate."""
