"""Random networks, and the checks that each of them is to pass."""

from .drawn_networks import ALONE, BETWEEN, RandomNetwork, examine

__all__ = ["ALONE", "BETWEEN", "RandomNetwork", "examine"]
