"""Broadcasts: the list, the review before sending, progress, results, recipients. Not here: writing the content."""
