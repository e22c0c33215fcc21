"""Files and tables to interactions: id maps, splits, named data sets, planted data."""
