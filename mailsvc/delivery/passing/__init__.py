"""Emails handed over between processes of one machine: from those that only accept mail to those that deliver it.

Before the commit, a process that accepts writes the email with its message to a Unix socket of a process of the same machine and region
that delivers (of a large message, the descriptor of the file that it arrived in), and afterwards whether it was committed. If the route
is known and the other process has room, the recipients are stored with its lease: it reserves places in its lanes, signs meanwhile, and
sends after the commit. Otherwise they are queued: then it looks at the queue at once and claims them as usual, but need not read the
message back. In the other direction it says where it has no room, and whether it is behind, so that accepting waits (runtime/pacing).

Nothing depends on it: the queue has every email and Postgres every message. What was not passed on is read from there, and a lease that
nobody was told about is given back (passing/handed_over, delivery/chores).

handoff: the interface for acceptance. sender, receiver: the two ends. frames, replies: what they write. handed_over: what the process
that delivers does with it. sockets: their names, and who may connect.
"""
