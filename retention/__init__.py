"""What is due and what must stay: one decision, legal dates, events, holds and sweeps. It destroys nothing itself."""
