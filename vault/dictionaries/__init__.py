"""Static compression dictionaries, one file a version, and the script that made them from synthetic data."""
