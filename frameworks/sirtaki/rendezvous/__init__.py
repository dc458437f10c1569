"""How ranks without MPI find each other: each gets the table of the addresses at which the ranks accept connections."""
