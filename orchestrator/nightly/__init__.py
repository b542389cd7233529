"""The nightly hardware regression: suites of trials, an index over their bundles, gates that judge metrics, reports."""
