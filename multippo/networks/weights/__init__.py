"""Weights out of networks and into them, those of plain torch and flax modules included."""
