"""A trained run as one page to read."""
