"""The sending side of SMTP: one connection to a server and the mails that go over it."""
