"""Sends the audit log out of the installation: signed anchors of its chains, and its lines for a SIEM. The chains: store/audit."""
