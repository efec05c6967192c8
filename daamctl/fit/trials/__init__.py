"""The two kinds of trial: a fusion over stored layers, and an adapter in an encoder."""
