"""``multippo bench``: multippo, other libraries and hand-written limits on the same work, each in its own process."""
