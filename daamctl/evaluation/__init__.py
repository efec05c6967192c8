"""Evaluation: the metrics, one line each in this table; every stage that scores or shows figures iterates it.

The order is the order of columns in reports.
"""

from daamctl.registry import Registry

METRICS = Registry(
    "metric",
    {
        "accuracy": "daamctl.evaluation.metrics:ACCURACY",
        "balanced_accuracy": "daamctl.evaluation.metrics:BALANCED_ACCURACY",
        "macro_f1": "daamctl.evaluation.metrics:MACRO_F1",
        "weighted_f1": "daamctl.evaluation.metrics:WEIGHTED_F1",
        "log_loss": "daamctl.evaluation.metrics:LOG_LOSS",
        "ece": "daamctl.evaluation.metrics:ECE",
    },
)
