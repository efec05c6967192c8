"""Evaluation: the table of metrics, one line each. All stages that compute or show scores iterate over it.

The order of the table is the order of columns in reports.
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
