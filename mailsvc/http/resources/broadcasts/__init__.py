"""Broadcasts over HTTP: the API, and the page on which recipients unsubscribe."""
