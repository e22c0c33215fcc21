"""Id to vector: one method per file, one interface, one registry, the memory report."""
