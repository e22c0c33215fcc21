"""One recommender: tables of ids and an interaction model."""
