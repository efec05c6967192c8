"""Presets: one file per encoder with its hub id and, for seeded random weights, its shape."""
