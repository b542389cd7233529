"""Tools for training jobs of your own: their records judged, their checkpoints audited, examples."""
