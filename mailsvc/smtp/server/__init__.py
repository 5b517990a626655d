"""The receiving side of SMTP: listeners, their connections, and the conversation on each. It knows no policy: see session."""
