"""The delivery queue in SQL: claims and leases, settling attempts, holds, processes and their heartbeats."""
