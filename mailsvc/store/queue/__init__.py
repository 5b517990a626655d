"""The delivery queue: claims and leases, settling attempts, holds, processes and their heartbeats."""
