"""A run's directory: its settings, its files, and how it is loaded, resumed and logged."""
