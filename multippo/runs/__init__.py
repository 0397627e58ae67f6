"""A run's directory: what lies in it, how it is read again, compared, and mended."""
