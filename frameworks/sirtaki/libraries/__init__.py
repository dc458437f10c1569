"""Which MPI and GPU libraries are loaded at run time, and where they are found."""
