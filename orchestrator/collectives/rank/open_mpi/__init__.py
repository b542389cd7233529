"""Open MPI as a peer to compare with: it runs the same collectives among the same ranks, over the same links."""
