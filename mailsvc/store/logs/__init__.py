"""What is read by people and counted for operators: requests, SMTP sessions, figures, and what retention deletes."""
