"""Environments stepped from Python: gymnasium, its vector forms, and worker processes."""
