"""The registry: tenants, tokens, data classes, stores, every copy of data with its origin, and the record over them."""
