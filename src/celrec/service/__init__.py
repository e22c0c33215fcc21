"""The HTTP service: a run that answers, takes events and learns them."""
