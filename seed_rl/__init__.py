"""seed_rl: distributed deep reinforcement learning with inference on the learner."""

__version__ = "0.1.0"
