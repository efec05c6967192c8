"""What a corpus asks of a model, and how answers are counted. Knows no files and no methods."""
