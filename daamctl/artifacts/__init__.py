"""Schemas of the files that stages exchange, with their readers and writers."""
