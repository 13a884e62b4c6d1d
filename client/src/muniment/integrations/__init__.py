"""What hooks the SDK into frameworks; each module needs its framework and is imported by name only."""
