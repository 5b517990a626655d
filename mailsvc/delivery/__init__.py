"""Delivery: from a leased recipient to the reply of its mail server, and what that reply means.

A recipient that is not in a final state has a row in the queue table. A process may send to it while it holds the row's lease.
`assembly` makes delivery, `service` starts and stops it. Mail passes through these modules:

Queue. There are two ways to a lease:

- `handoff`: intake reserves a place in a lane before it commits an email. If it gets one, the recipient is stored with a lease,
  and after the commit goes straight to the lane, without being read back from the queue. Small messages are signed during the commit.
- `service` looks at the queue when a notification comes, when a lane has room, and every `delivery.poll_seconds`. `claiming` decides
  how many rows of which destinations to lease, and remembers which destinations have a backlog, so that new mail does not overtake it.
  `placing` resolves the routes of claimed rows (`connection/route`) and puts them into lanes. `chores` do the rest: scheduled mail,
  expiry, holds made by other processes, leases that nobody remembers. All use the queue through `process_queue`.

Every leased row in memory is in the lease book (`leases`), which also gives leases back to the queue. What moves on from here is a
`transaction`: the recipients of one email at one destination.

Lane. A `lane` is one destination in memory: its connections and the mail that waits for them, in which accounts take turns and
transactional mail comes before bulk mail. `lanes` is the registry. All lanes share a `lane_context`. Whether mail or a connection may
go next is decided in `admission/`: `slots` are the connections of the process, `budget` keeps the limits of a provider (`shaping`, with
its rules in shaping.toml), `health` is how a destination has behaved, `holds` are destinations and accounts that get nothing now,
`memory` limits the bytes of messages.

Connection. A lane opens connections before it assigns mail to them. `connection/connect` tries the hosts of the route in order,
`connection/dial` opens TCP and TLS and speaks SMTP through `smtp/client`, `connection/sources` chooses our address, of the pool
that the mail belongs to (`connection/pools`), among those that may send now (`connection/source_state`). What TLS a mail
requires is in `connection/tls_policy`: the sending domain's setting, or MTA-STS (`connection/mta_sts`, `connection/mta_sts_file`).
DANE takes precedence. `connection/send_modes` chooses between BDAT and DATA, with or without PIPELINING;
`connection/transaction_sizes` remembers hosts that take few recipients at once, `connection/failed_hosts` those that are tried after the
others; `connection/host_memory` is what they remember in.
`connection/tls_counts` counts for TLS reports.

Attempt. `attempt` sends one transaction over one connection. `message_loader` gets the message from memory or the store,
`sending_domain` gives the return path and the DKIM signature, `attempt_envelope` the envelope with the parameters of the submission.
Right before the last bytes of the message, the client asks whether the process still holds the lease.

Settle. `reading` makes an outcome for each recipient from the replies. `classify` says what a reply means for the recipient (with
`bounces/diagnosis`), `retry` when the next attempt is. `store/queue/settle` writes state, attempt and events in one transaction, and only
then does the connection take its next mail. `reactions` draw conclusions for the destination: a hold, slower sending, a lane closed.

Everything that has to be written is retried until the database has it (`pace`). Work in the background is in `tasks`, which shutdown
waits for. A shutdown gives back what was not begun, waits `delivery.drain_seconds` for replies, then cuts: what was sent completely
and not answered is settled as uncertain.
"""
