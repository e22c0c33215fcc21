"""Checks for embedding methods of your own."""

from celrec.testing.conformance import check_embedding

__all__ = ["check_embedding"]
