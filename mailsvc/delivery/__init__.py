"""The way out: from a leased recipient to the reply of its mail exchanger, and what that reply means."""
