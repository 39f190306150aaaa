"""Types, events, settings and keyed randomness: what every other package shares."""
