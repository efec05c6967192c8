"""Scores, intervals and comparisons of finished folds; Importance Factor and its audit, probes, leaks in the data."""
