"""DMARC and TLS reports: `receiving` takes those about our customers' domains, `tls_sending` sends ours to the domains that ask for them.

The formats: mail/reports. The tables: store/domains/reports and store/queue/tls.
"""
