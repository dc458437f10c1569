"""What the user asks for: options, a configuration file, lists of hosts."""
