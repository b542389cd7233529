"""Use cases on recorded runs, which need no bed: compare, report, judge, export, sign, watch, print."""
