"""`muniment scan`: recognises stores that hold agents' data by their tables and files, and changes no byte of them.

Start at `connectors.scanning.scan.scan`. Needs no driver of any store and builds nothing that a store names.
"""
