"""Replay and verification by somebody who shares only the ledger's format with the code under audit."""
