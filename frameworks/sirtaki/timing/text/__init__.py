"""Texts about the times of ranks. Nothing here needs the core, so the launcher may use it, too."""
