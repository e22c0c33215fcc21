"""Where large arrays live."""
