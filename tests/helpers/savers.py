"""A process that changes a learner's file again and again, beside another one.

As a script it takes the file, the number of the process and the number of rounds, and
prints how many saves were not refused.
"""

import sys

from small_lessons import images

from crumb_avalanche.learner.known_files import ReplacedError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.folder_lock import FolderInUseError


def save_once(path, number, seed, wait=lambda: None):
    """Load, teach the class ``cNUMBER``, wait and save; return 0 if that is refused."""
    learner = Learner.load(path)
    learner.teach(images(number, 1, seed=seed), f"c{number}")
    wait()
    try:
        learner.save(path)
    except (FolderInUseError, ReplacedError):
        return 0
    return 1


def save_in_rounds(path, number, rounds, barrier, saved):
    """Save a learner in each round, at the moment that another process does.

    Args:
        path: the learner's file.
        number: of the process.
        rounds: how often.
        barrier: of both processes, passed after loading and before the next round.
        saved: counts the saves of both processes that were not refused.
    """
    for seed in range(rounds):
        count = save_once(path, number, seed, barrier.wait)
        with saved.get_lock():
            saved.value += count
        barrier.wait()


if __name__ == "__main__":
    path, number, rounds = sys.argv[1:]
    print(sum(save_once(path, int(number), seed) for seed in range(int(rounds))))
