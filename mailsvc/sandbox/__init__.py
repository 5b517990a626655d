"""The development inbox: a receiving server in the same process, so that a first mail takes the whole way."""
