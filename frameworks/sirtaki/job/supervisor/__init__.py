"""The processes beside each rank, which start and supervise the user's program."""
