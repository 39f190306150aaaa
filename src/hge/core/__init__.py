"""Types, events, settings and keyed randomness, shared by all other packages."""
