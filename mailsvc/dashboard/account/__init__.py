"""The pages under Settings: profile, security, team with access review, single sign-on, SMTP, usage, plan, data and privacy."""
