"""Recommenders (tables and a model) and the loops that train them, offline and online."""
