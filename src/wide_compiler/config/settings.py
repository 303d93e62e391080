"""The environment variables that are read: what each means, and its older name."""

import os

PREFIX = "WIDE_COMPILER_"
# Every setting read from the environment: name without prefix -> (older variable, description).
SETTINGS: dict[str, tuple[str, str]] = {
    "CACHE": ("", "folder of the measured answers"),
    "CONFIG": ("GT_CONFIG", "YAML file of signals, read before the first one is looked up"),
    "DEBUG_DISPATCHER": ("GT_DEBUG_DISPATCHER", "1 writes to stderr where each op goes"),
    "HANG_SECONDS": ("GT_HANG_SECONDS", "a worker that takes longer for one instruction counts as hung"),
    "INSTRUCTION_LOG": ("GT_INSTRUCTION_LOG", "file for one line per worker and instruction"),
    "SILENCE_SECONDS": ("GT_SILENCE_SECONDS", "a worker that is silent for longer counts as hung"),
    "VALIDATE": ("XCS_CHECK", "1 compares every call of a @jit site with plain Python"),
    "WORKERS": ("GT_WORKERS", "how many workers signals start; 0 for none, 'ray' for actors"),
}


def variable(name: str) -> str:
    """Return the environment variable of a setting: `WIDE_COMPILER_{name}`, or the older one if only that is
    set."""
    older, _ = SETTINGS[name]
    return older if older in os.environ and PREFIX + name not in os.environ else PREFIX + name
