"""The development inbox: a receiving server in the same process, so that a first mail is delivered over real SMTP."""
