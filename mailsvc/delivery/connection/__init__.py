"""From a destination to an open connection: routes, TLS policy, source addresses, dialling."""
