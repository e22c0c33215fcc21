"""Top-k, scores, explanations, cluster listings, export."""
