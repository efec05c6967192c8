"""Training of fusion methods and adapters: splits, loops, hyperparameter search and fold files."""
