"""Plan the remaining work of a pipeline (for `stages/plan.py`).

`artifact_status` finds what is finished, `estimate` counts items, disk and memory, `recorded` estimates times from
finished work, `rows` is the table. `ablation` chooses the methods of an ablation, for `stages/ablate.py` too.
"""
