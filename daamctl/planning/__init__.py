"""Plan the remaining work of a pipeline (for `stages/plan.py`).

`tasks` is what there is to do; `expected` tells what is finished, and counts items, disk and memory; `recorded`
estimates times from finished work. `layer_sets` chooses the methods of an ablation, for `stages/ablate.py` too.
"""
