"""Open and click tracking, the pure parts: tokens, links in HTML and what replaces them, and requests that programs make."""
