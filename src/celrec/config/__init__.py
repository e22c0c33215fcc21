"""What to train: plans, presets, the options of all commands, and what the data pick."""
