"""Vectors to a prediction: one interaction model per file; a model never sees an id."""
