"""Insights: advice about each email (checks/), and the reputation facts that some of it needs (reputation)."""
