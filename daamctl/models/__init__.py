"""Exported models: folders that stand alone, and predictions from them.

`folder.py` reads and writes `model.json`, `model.py` opens a folder as a model, `inputs.py` turns files, tables and
texts into rows, `predict.py` predicts them, and `card.py` writes the model card.
"""
