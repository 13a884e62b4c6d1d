"""The log: opaque bytes and commitments, append-only, provable. Imports no other package of ours."""
