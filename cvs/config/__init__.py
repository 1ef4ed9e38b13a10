"""The only config models, and their loader."""

from cvs.config.aorta import AortaConfig, ExpectedResults
from cvs.config.cluster import ClusterConfig
from cvs.config.loader import load_aorta, load_cluster, load_files

__all__ = ["AortaConfig", "ClusterConfig", "ExpectedResults", "load_aorta", "load_cluster", "load_files"]
