"""The routes, one module per heading of API.md, each with its schemas beside it.

Guarantees: a route parses, asks a package to decide, and shapes the answer; it holds no rule and no SQL of its own.
"""
