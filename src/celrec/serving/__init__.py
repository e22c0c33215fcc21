"""Top-k, export, the HTTP service and its page."""
