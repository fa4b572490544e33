"""One run: from a config to a result."""
