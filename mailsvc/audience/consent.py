"""Decides whether a contact may get an email, from given facts. Pure.

It is asked when a broadcast starts, again before each message is handed over, and for emails with a `topic_id`.
"""

from __future__ import annotations

from typing import Literal

Refusal = Literal["unsubscribed", "topic"]


def refusal(unsubscribed: bool, default: bool | None = None, choice: bool | None = None) -> Refusal | None:
    """Why a contact gets no mail, or None.

    `unsubscribed`: from everything, which takes precedence over all topics. `default`: whether contacts without a choice are subscribed to
    the mail's topic; None: the mail has no topic. `choice`: the contact's own choice for this topic, or None. Whoever is not a contact
    has made no choice, unless an unsubscribe is remembered for the address (store/audience/unsubscribes).
    """
    if unsubscribed:
        return "unsubscribed"
    if default is None:
        return None
    return None if (default if choice is None else choice) else "topic"
