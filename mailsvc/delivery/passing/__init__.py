"""Messages passed between processes of one machine: from those that only accept mail to those that deliver it.

A process that commits an email sends its message over a Unix socket to a process of the same machine and region that delivers (of a
large one, the descriptor of the file that it arrived in), and after the commit a second frame. Then that process looks at the queue at
once and claims the email as usual, but need not read the message back. In the other direction it says whether it is behind, so that
accepting waits (runtime/pacing).

Nothing depends on it: the queue has every email and Postgres every message, and what was not passed on is read from there.

frames: what is written. sockets: their names, and who may connect. sender, receiver: the two ends.
"""
