"""What a pipeline still has to do here: what lies on disk, what is needed, what it takes; `stages/plan.py` joins it.

Each part knows those above it: `rows` (the table), `present` (what is there), `needs` (disk and memory), `calibration`
(what is measured).
"""
