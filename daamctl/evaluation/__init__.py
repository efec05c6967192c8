"""Evaluation: the metrics, one line each in this table; every stage that scores or shows figures iterates it."""

from daamctl.registry import Registry

METRICS = Registry(
    "metric",
    {
        "accuracy": "daamctl.evaluation.metrics:ACCURACY",
        "balanced_accuracy": "daamctl.evaluation.metrics:BALANCED_ACCURACY",
        "macro_f1": "daamctl.evaluation.metrics:MACRO_F1",
    },
)
