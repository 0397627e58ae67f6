"""Action samplers, from a distribution's parameters to an action and its log-likelihood."""
