"""Every figure of delivery that an operator may change, with its default."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class DeliveryLimits:
    """`[delivery]` of the settings. Times are seconds, sizes are bytes."""

    # Where mail goes
    routes: Mapping[str, str] = attrs.field(factory=dict)  # recipient domain or "*" → "smtp://host:port", before any DNS
    port: int = 25  # of mail exchangers found in DNS
    nameservers: tuple[str, ...] = ()  # "127.0.0.1:5353"; empty: those of /etc/resolv.conf
    dns_seconds: float = 10.0  # for one lookup, with all nameservers and retries
    allow_addresses: tuple[str, ...] = ()  # networks that may be connected to although they are private or reserved
    dane: bool = False  # whether to look up TLSA records, with a resolver that validates
    chunking: bool = True  # whether messages go by BDAT to hosts that offer it
    own_names: tuple[str, ...] = ()  # our EHLO names: a mail exchanger with such a name, and all less preferred ones, would be a loop

    # When mail is retried
    retry_after: tuple[float, ...] = (60, 300, 900, 1800, 3600, 7200)  # after the 1st, 2nd, … attempt
    retry_every: float = 14400  # after those
    retry_jitter: float = 0.2  # each delay is lengthened or shortened by up to this share
    greylist_seconds: float = 300  # the shortest delay after a temporary refusal
    uncertain_seconds: float = 300  # the shortest delay after a message without a reply
    hold_first: float = 60  # a destination that cannot be reached is held this long, doubled each time …
    hold_longest: float = 1800  # … up to this
    poison_tries: int = 3  # an email fails after so many attempts with an internal error

    # How much at once
    connections: int = 500  # of this process, to all destinations
    connections_initial: int = 2  # to a destination that has not proven itself
    connections_max: int = 20  # to one destination, from all processes of the region
    messages_per_connection: int = 100
    recipients_per_message: int = 100  # more need further transactions (5321 §4.5.3.1.8)
    patience_seconds: float = 20.0  # while others wait, for a connection to a destination that has not proven itself
    idle_seconds: float = 5.0  # how long a connection without mail stays open
    connect_seconds: float = 30.0  # for one address
    connect_addresses: int = 5  # tried for one connection, divided among the hosts, at least one of each
    window: int = 1000  # emails of one destination in memory
    emails: int = 20_000  # emails of all destinations in memory
    memory: int = 67_108_864  # bytes of messages in memory

    # Service
    poll_seconds: float = 1.0  # the queue is read this often if no notification comes
    drain_seconds: float = 30.0  # how long shutdown waits for replies
