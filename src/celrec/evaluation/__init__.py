"""Metrics, cold and warm slices, cluster diagnostics."""
