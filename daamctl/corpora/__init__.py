"""Corpora: one file each, one line each in this table."""

from daamctl.data.registry import Registry

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
        "images": "daamctl.corpora.image_folder:IMAGES",
        "coco": "daamctl.corpora.image_folder:COCO",
        "demo-tokens": "daamctl.corpora.demo_tokens:CORPUS",
        "wnut17": "daamctl.corpora.wnut17:CORPUS",
        "conll2003": "daamctl.corpora.conll2003:CORPUS",
        "wikiann": "daamctl.corpora.wikiann:CORPUS",
        "conll": "daamctl.corpora.conll:CORPUS",
        "manifest": "daamctl.corpora.manifest:CORPUS",
        "embeddings": "daamctl.corpora.embeddings:CORPUS",
    },
)
