"""Looking into networks: summaries, and records of activations."""
