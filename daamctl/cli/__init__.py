"""The command line: one file per command; each parses, calls one function of the library, and prints."""
