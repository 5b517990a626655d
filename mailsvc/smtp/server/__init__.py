"""The receiving side of SMTP: a listener, its connections, and the dialogue on each of them."""
