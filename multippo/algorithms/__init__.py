"""PPO: its arithmetic and the training loop, written once for every engine."""
