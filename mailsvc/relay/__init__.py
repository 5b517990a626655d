"""The relay: mail that customers hand in over SMTP. It speaks through smtp/ and hands everything to intake."""
