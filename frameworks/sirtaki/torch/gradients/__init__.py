"""Reduces gradients while backward runs."""
