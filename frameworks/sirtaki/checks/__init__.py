"""Checks that every adapter makes: arguments, call sites, and whether all ranks do the same."""
