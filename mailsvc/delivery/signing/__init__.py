"""DKIM signatures of small messages. On processors that make them one by one, a child process does: the reactor's thread has other work.

Nothing depends on the child. Without it, or when it fails, the same signatures are made on the reactor's thread.

signer: where each signature is made. child: the daemon's end, which starts the child. process: the child's program. frames: what they write
to each other.
"""
