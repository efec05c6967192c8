"""One training loop for every method, and what it needs."""
