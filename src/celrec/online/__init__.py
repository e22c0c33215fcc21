"""Learning a stream: trainer, mixtures and clusters, eviction, replay."""
