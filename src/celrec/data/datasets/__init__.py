"""Public data sets: finding, loading and fetching them by name."""
