"""How people prove who they are: passwords, links, second factors, and the mails about them."""
