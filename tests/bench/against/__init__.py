"""A commit and the checkout side by side, measured in turns until the ratio of each measure is known."""
