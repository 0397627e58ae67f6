"""Subjects of checks: engines, modules, networks, and modules that are wrong on purpose."""
