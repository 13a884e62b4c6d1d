"""Subject keys: made, wrapped, opened and destroyed. Decides nothing about who may read or what must be erased."""
