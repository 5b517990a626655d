"""`mailsvc import`: takes over suppressions, contacts, segments and domains from another service."""
