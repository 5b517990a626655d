"""The audit log's hash chain: how lines are linked, verified, anchored and sent elsewhere. Lines are written by store/people/audit."""
