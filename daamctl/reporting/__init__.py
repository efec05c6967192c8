"""Reporting: the published figures, the tables and templates of the report."""
