"""Reduces the gradients of a step."""
