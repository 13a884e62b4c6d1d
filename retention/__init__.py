"""Retention: what is due, decided by one rule; events, holds, sweeps. Destroys nothing itself."""
