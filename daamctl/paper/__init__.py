"""The papers on Density Adaptive Attention: their numbers, their claims, and where their code departs from them.

Data files hold what the papers say, and little code reads them:

- `numbers.csv`: every printed number and its place in the report; read by `numbers.py`
- `claims.yaml`: the experiments, and what the papers claim about their numbers; read by `numbers.py`
- `deviations.yaml`: where the released code departs from the papers; read by `deviations.py`

This package is above the core: it uses methods, settings and reporting, and none of them imports it.
"""
