"""`mailsvc setup`: from an empty server to an installation that can send. The command itself: command.py."""
