"""Training the policy: mixtures of networks, rollouts, hierarchical PPO, checkpoints."""
