"""Checks that every adapter makes: arguments, call sites, and that all ranks do the same."""
