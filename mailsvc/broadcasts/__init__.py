"""Sending broadcasts: one email for each contact of a segment, composed when it is sent, with a link to unsubscribe."""
