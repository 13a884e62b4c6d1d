"""Data classes, stores, artifacts, derivations, subjects, streams: what is where, whose it is, where it came from."""
