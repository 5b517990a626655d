"""SQL for the request and session logs, figures for operators, and retention."""
