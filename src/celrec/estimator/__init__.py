"""The estimator for people with a table of events."""
