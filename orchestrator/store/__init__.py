"""Keeps what lasts on the controller: the journal, bundles, bed files, locks and the cache of twins."""
