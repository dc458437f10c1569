"""Checkpoints: files that a killed rank cannot damage, written beside training, and the newest one for all ranks."""
