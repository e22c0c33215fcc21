"""Files and streams to interactions: id maps, splits, named data sets, synthetic data."""
