"""Gated Experts for river: a classifier and a drift detector with river's interfaces (`pip install 'hge[river]'`)."""

from hge.river.classifier import GatedExpertsClassifier
from hge.river.detector import LossSwitchDetector

__all__ = ["GatedExpertsClassifier", "LossSwitchDetector"]
