"""Random networks, and the checks that each is to pass."""

from .drawn_networks import ALONE, BETWEEN, RandomNetwork, examine

__all__ = ["ALONE", "BETWEEN", "RandomNetwork", "examine"]
