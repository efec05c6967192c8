"""Scores, intervals and comparisons of finished folds."""
