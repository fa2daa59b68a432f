"""The six models of table 1 of Fei et al. (SIGCOMM 2021), by name."""

from __future__ import annotations

from bert import Sentences
from deeplight import DeepLight
from lstm import Lstm
from ncf import Ncf
from pictures import ResNet152Pictures, Vgg19Pictures
from task import Task

MODELS: dict[str, type[Task]] = {
    "deeplight": DeepLight,
    "lstm": Lstm,
    "bert": Sentences,
    "ncf": Ncf,
    "vgg19": Vgg19Pictures,
    "resnet152": ResNet152Pictures,
}
FOLDERS = {  # of their data (sources.py)
    **{"deeplight": "criteo", "lstm": "wikitext-2", "bert": "sst2", "ncf": "ml-100k"},
    **{"vgg19": "cifar-10", "resnet152": "cifar-10"},
}
