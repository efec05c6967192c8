"""daamctl: probe frozen encoders layer by layer, and check Density Adaptive Attention honestly."""

__version__ = "0.1.0"
