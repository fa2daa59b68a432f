"""The benchmark: `omnihvd bench`."""
