"""External stores: one contract (`base`), one file per kind; nothing here knows plans, laws or the record."""
