"""Plan of a pipeline's remaining work: what exists, what is needed and what it costs (for `stages/plan.py`).

Modules build on those listed before them: `rows` (the table), `artifact_status` (what exists), `resources` (disk and
memory), `calibration` (measurements).
"""
