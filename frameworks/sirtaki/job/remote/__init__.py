"""Ranks on other hosts: the launcher's side, and the agent that it starts on each of them."""
