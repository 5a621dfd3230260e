"""An environment and a network of one's own:

python -m seed_rl --environment=lights:Lights --network=lights:make_network ...
"""

import gymnasium
import numpy as np


class Lights(gymnasium.Env):
    """Press the lights that are on, one after the other; pressing one that is off ends it."""

    observation_space = gymnasium.spaces.MultiBinary(6)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lights = self.np_random.permutation(np.array([0, 0, 0, 1, 1, 1], np.int8))
        return self.lights, {}

    def step(self, action):
        was_on, self.lights[action] = self.lights[action] == 1, 0
        return self.lights, float(was_on) / 3, not was_on or not self.lights.any(), False, {}


def make_network(observation, rng):
    import tensorflow as tf  # here, since actors do without it

    class Network(tf.Module):
        output_size = 32

        def __init__(self):  # makes all variables, and keeps them as attributes
            super().__init__()
            weights = rng.normal(0, 0.3, (*observation.shape, self.output_size))
            self.weights = tf.Variable(weights, dtype=tf.float32)

        def __call__(self, lights):
            return tf.nn.relu(tf.cast(lights, tf.float32) @ self.weights)

    return Network()
