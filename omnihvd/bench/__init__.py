"""`omnihvd bench`: omnihvd beside what it replaces, on the user's cluster, in a minute."""
