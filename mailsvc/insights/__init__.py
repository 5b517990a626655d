"""Advice on each email, and the sender's reputation that some of it depends on."""
