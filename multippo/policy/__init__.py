"""A trained policy in use: one step from an observation to the environment's own action, and its export."""
