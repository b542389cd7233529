"""A peer to compare with: the same collectives carried out by Open MPI, among the same ranks and over the same links."""
