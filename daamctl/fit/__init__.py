"""Everything that is trained: one loop, the kinds of fits, finished folds on disk, and tracking in MLflow."""
