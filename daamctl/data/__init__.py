"""What a corpus asks of a model, and how answers are counted; audio, and tables of named objects. Knows no methods.

`METRICS` is the table of metrics of items, one line each. A task says which of them it has (`daamctl.data.task`).
"""

from daamctl.data.registry import Registry

METRICS = Registry(
    "metric",
    {
        "accuracy": "daamctl.data.metrics:ACCURACY",
        "balanced_accuracy": "daamctl.data.metrics:BALANCED_ACCURACY",
        "macro_f1": "daamctl.data.metrics:MACRO_F1",
        "weighted_f1": "daamctl.data.metrics:WEIGHTED_F1",
        "log_loss": "daamctl.data.metrics:LOG_LOSS",
        "ece": "daamctl.data.metrics:ECE",
    },
)
