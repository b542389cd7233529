"""The nightly hardware regression: metrics of nights, and the gates that judge them. Pure: no I/O, no clock, no randomness."""
