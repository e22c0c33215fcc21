"""Run folders, checkpoints, snapshots."""
