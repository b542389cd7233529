"""Documents at the border: events, manifests and plans are decoded and validated here."""
