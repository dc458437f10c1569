"""Processes and shared memory segments of this host."""
