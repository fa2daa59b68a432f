"""`omnihvd check`: what was found, what omnihvd intercepts, and the remedy for each gap."""
