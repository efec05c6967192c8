"""Encoder presets: one file per encoder with its hub id and its shape, which random weights need."""
