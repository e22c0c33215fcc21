"""Clustered Embedding Learning: splits, criteria, reassignment, and the objects that apply them."""
