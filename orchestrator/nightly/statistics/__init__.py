"""The statistics of the nightly regression. Pure: no I/O, no clock, no randomness."""
