"""Papers people read and sign: certificates and letters as HTML, PDF and plain text, from one model each.

Guarantees: a paper is a function of its model alone, so the same certificate gives the same bytes; nothing is loaded
from outside. What a certificate says is decided in `erasure.certificate`, what a letter says in `wording`.
"""
