"""Environments traced by JAX: brax, playground, and those of users."""
