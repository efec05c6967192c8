"""Corpora: one file each, one line each in this table."""

from daamctl.registry import Registry

CORPORA = Registry(
    "corpus",
    {
        "demo": "daamctl.corpora.demo:CORPUS",
        "emodb": "daamctl.corpora.emodb:CORPUS",
        "iemocap": "daamctl.corpora.iemocap:CORPUS",
        "demo-text": "daamctl.corpora.demo_text:CORPUS",
        "agnews": "daamctl.corpora.agnews:CORPUS",
        "digits": "daamctl.corpora.digits:CORPUS",
        "cifar100": "daamctl.corpora.cifar100:CORPUS",
        "manifest": "daamctl.corpora.manifest:CORPUS",
        "embeddings": "daamctl.corpora.embeddings:CORPUS",
    },
)
