"""The pages under Settings: members, profile, security, passkeys, SMTP credentials and usage."""
