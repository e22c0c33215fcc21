"""Fitting a log: the loop, the solvers, and where clusters start."""
