"""Corpora: one file each, one line each in this table."""

from daamctl.registry import Registry

CORPORA = Registry(
    "corpus",
    {
        "demo": "daamctl.corpora.demo:CORPUS",
        "emodb": "daamctl.corpora.emodb:CORPUS",
        "iemocap": "daamctl.corpora.iemocap:CORPUS",
        "manifest": "daamctl.corpora.manifest:CORPUS",
    },
)
