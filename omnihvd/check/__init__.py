"""`omnihvd check`: what was found, what would be hooked, and what to do about each gap."""
