"""The SMTP relay: customers submit mail, and other servers return it. It receives through smtp/server and submits to intake."""
