"""What the operator sees of the running: logs and health."""
