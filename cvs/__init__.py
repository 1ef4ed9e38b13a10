"""cvs, a cluster validation suite: do N nodes really train together at full speed?"""

__version__ = "0.1.0"
