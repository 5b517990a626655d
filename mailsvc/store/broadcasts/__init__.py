"""Broadcasts: their content and state, their recipients, and what sending them reads and writes."""
