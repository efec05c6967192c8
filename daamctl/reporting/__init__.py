"""The report: sections, tables, sentences and templates, and the figures with what draws them."""
