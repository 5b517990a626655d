"""Opens and clicks of tracked emails, and which hosts serve tracked links."""
