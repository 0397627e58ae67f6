"""Checks: properties of the evidence of one engine, or of two."""
