"""Stands in for DeepMind Lab, which no package index has: put this folder on sys.path.

It keeps the contract that a real build was seen to keep: types, errors and their order, life
cycle, level cache, leaks. What a real build leaves undefined, and what crashes or hangs it, ends
the process here with a line that says so. Only the pictures are of its own making: their first
pixel is (episodes so far, frames of this one, 0), the second tells the level, and the rest is noise
that depends on the seed and on all actions.

DMLAB_DOUBLE_FRAMES is how long episodes are, DMLAB_DOUBLE_LOG a file that gets a line for every
level that is compiled.
"""

import hashlib
import json
import os
import shutil
import tempfile
import zipfile

import numpy as np

_DMLAB30 = "contributed/dmlab30/"
_VARIANTS = ("rooms_collect_good_objects", "rooms_exploit_deferred_effects")
_ALONE = """
    rooms_select_nonmatching_object rooms_watermaze rooms_keys_doors_puzzle
    language_select_described_object language_select_located_object language_execute_random_task
    language_answer_quantitative_question lasertag_one_opponent_small lasertag_three_opponents_small
    lasertag_one_opponent_large lasertag_three_opponents_large natlab_fixed_large_map
    natlab_varying_map_regrowth natlab_varying_map_randomized skymaze_irreversible_path_hard
    skymaze_irreversible_path_varied psychlab_arbitrary_visuomotor_mapping
    psychlab_continuous_recognition psychlab_sequential_comparison psychlab_visual_search
    explore_object_locations_small explore_object_locations_large explore_obstructed_goals_small
    explore_obstructed_goals_large explore_goal_locations_small explore_goal_locations_large
    explore_object_rewards_few explore_object_rewards_many
""".split()  # noqa: SIM905
LEVELS = {
    *(f"{_DMLAB30}{name}" for name in _ALONE),
    *(f"{_DMLAB30}{name}_{variant}" for name in _VARIANTS for variant in ("train", "test")),
    "tests/empty_room_test",
    "lt_chasm",
}
_OBSERVATIONS = ("RGB_INTERLEAVED", "INSTR", "VEL.TRANS")
_ACTIONS = (
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
)
_INSTRUCTIONS = ("Pick the red object in the blue room.", "Are most cars blue?", "Get the hat.")

_threads_exist = False  # those of the software renderer, which do not survive a fork


def _die(code, reason):
    os.write(2, f"deepmind_lab (double): a real build would {reason}\n".encode())
    os._exit(code)


def _before_fork():
    if _threads_exist:
        _die(97, "hang: the process forks after an environment was made")


os.register_at_fork(before=_before_fork)


class Lab:
    def __init__(self, level, observations, config={}, renderer="software", level_cache=None):  # noqa: B006
        global _threads_exist
        if not isinstance(level, str) or not isinstance(renderer, str):
            raise TypeError(f"wanted level and renderer as str, saw {level!r}, {renderer!r}")
        if type(observations) is not list:
            raise TypeError(f"observations must be list, not {type(observations).__name__}")
        if type(config) is not dict:
            raise TypeError(f"config must be dict, not {type(config).__name__}")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(
                f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!'
            )
        for key, value in config.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"bad argument type for built-in operation: {key!r}: {value!r}")
        self._width, self._height = (
            self._size(config, name, default) for name, default in (("width", 320), ("height", 240))
        )
        if self._width % 4:
            raise RuntimeError(
                f"Failed to apply setting 'width = {config['width']}' - \"must be a multiple of 4\""
            )
        if level not in LEVELS:
            raise RuntimeError(f'Failed to init environment - "Level not found: {level}"')
        held_out = level.startswith(_DMLAB30) and level.endswith("_test")
        if held_out and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError('Failed to init environment - "Hold-out level"')
        if "psychlab_" in level and not os.path.isdir(config.get("datasetPath", "")):
            raise RuntimeError('Failed to init environment - "datasetPath is missing"')
        for name in observations:
            if name not in _OBSERVATIONS:
                raise ValueError(f"Unknown observation '{name}'.")
        self._level, self._names, self._cache = level, list(observations), level_cache
        self._status = "new"
        self._episode = self._num_resets = self._num_steps = 0
        for _ in range(3):
            os.pipe()  # six descriptors, which nothing closes
        if renderer == "software" and os.environ.get("LP_NUM_THREADS") != "0":
            _threads_exist = True

    @staticmethod
    def _size(config, name, default):
        text = config.get(name, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise RuntimeError(f"Failed to apply setting '{name} = {text}' - \"Invalid\"")
        return int(text)

    def reset(self, episode=-1, seed=None):
        if self._status == "closed":
            raise RuntimeError("Environment closed")
        if isinstance(episode, bool) or not hasattr(type(episode), "__index__"):
            raise TypeError(
                f"'{type(episode).__name__}' object cannot be interpreted as an integer"
            )
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        if not isinstance(seed, int):
            raise ValueError(f"'seed' must be int or None, was '{type(seed).__name__}'.")
        if not -(2**31) <= seed < 2**31:
            _die(98, f"take the seed {seed} for another one: it is kept in a C int")
        if episode >= 0:
            self._episode = int(episode)
        self._status = "failed"
        if "psychlab" not in self._level:
            self._load_level(seed)
        # The same seed shows the same only in a fresh environment.
        self._rng = np.random.default_rng((seed, self._num_resets))
        self._text = _INSTRUCTIONS[seed % 3] if "language_" in self._level else ""
        self._episode += 1
        self._num_resets += 1
        self._num_steps = 0
        self._status = "running"
        self._draw()
        return True

    def _load_level(self, seed):
        """Gets the level from the cache, or compiles it."""
        key = f"{self._level}:{seed % 1000}\n*?"  # generated levels differ from seed to seed
        folder = tempfile.mkdtemp(prefix="dmlab-double-")
        try:
            pk3_path = os.path.join(folder, "level.pk3")
            hit = self._cache is not None and bool(self._cache.fetch(key, pk3_path))
            if hit:
                try:
                    with zipfile.ZipFile(pk3_path) as pk3:
                        assert pk3.testzip() is None
                        found = json.loads(pk3.read("level.json"))
                        assert found["key"] == key
                except Exception as error:
                    _die(96, f"crash: fetch() was True, but the level isn't there: {error!r}")
                return
            if log := os.environ.get("DMLAB_DOUBLE_LOG"):
                with open(log, "a") as file:
                    file.write(json.dumps(key) + "\n")
            noise = hashlib.shake_256(key.encode()).hexdigest(200_000)
            with zipfile.ZipFile(pk3_path, "w") as pk3:
                pk3.writestr("level.json", json.dumps({"key": key, "noise": noise}))
            if self._cache is not None:
                self._cache.write(key, pk3_path)
        finally:
            shutil.rmtree(folder)

    def step(self, action, num_steps=1):
        if not isinstance(action, np.ndarray):
            raise TypeError(f"argument 1 must be numpy.ndarray, not {type(action).__name__}")
        if isinstance(num_steps, bool) or not hasattr(type(num_steps), "__index__"):
            raise TypeError(
                f"'{type(num_steps).__name__}' object cannot be interpreted as an integer"
            )
        if self._status != "running":
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (len(_ACTIONS),):
            raise ValueError(f"action must have shape ({len(_ACTIONS)})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        if not action.flags.c_contiguous:
            _die(95, "read other numbers than these: it ignores the strides of an action")
        for value, (name, least, most) in zip(action.tolist(), _ACTIONS, strict=True):
            if not least <= value <= most:
                _die(94, f"do anything at all: {name} is {value}, wanted {least} to {most}")
        self._num_steps += int(num_steps)
        self._rng = np.random.default_rng((self._rng.integers(2**31), *(action + 512)))
        if self._num_steps >= int(os.environ.get("DMLAB_DOUBLE_FRAMES", "5400")):
            self._status = "over"
        else:
            self._draw()
        return float(action[3]) / 2 + float(action[4])

    def _draw(self):
        frame = self._rng.integers(0, 256, (self._height, self._width, 3), np.uint8)
        frame[0, 0] = self._num_resets % 256, self._num_steps % 256, 0
        frame[0, 1] = list(hashlib.sha256(self._level.encode()).digest()[:3])
        self._frame = frame

    def is_running(self):
        return self._status == "running"

    def observations(self):
        if self._status != "running":
            raise RuntimeError("Environment in wrong status for call to observations()")
        values = {
            "RGB_INTERLEAVED": self._frame.copy(),
            "INSTR": self._text,
            "VEL.TRANS": np.zeros(3),
        }
        return {name: values[name] for name in self._names}

    def num_steps(self):
        return self._num_steps

    def events(self):
        return []

    def action_spec(self):
        return [{"name": name, "min": least, "max": most} for name, least, most in _ACTIONS]

    def observation_spec(self):
        return [
            {
                "name": "RGB_INTERLEAVED",
                "dtype": np.uint8,
                "shape": (self._height, self._width, 3),
            },
            {"name": "INSTR", "dtype": str, "shape": ()},
            {"name": "VEL.TRANS", "dtype": np.float64, "shape": (3,)},
        ]

    def close(self):
        was_open = self._status != "closed"
        self._status = "closed"
        return was_open
