"""The version of daamctl. In a file of its own, because every command reads it before it imports anything else."""

__version__ = "0.1.0"
