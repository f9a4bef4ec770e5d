"""A process that changes a learner's file again and again, beside another one."""

from small_lessons import images

from crumb_avalanche.learner.known_files import ReplacedError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.folder_lock import FolderInUseError


def save_in_rounds(path, number, rounds, barrier, saved):
    """Load, teach and save a learner in each round, at the moment that another does.

    Args:
        path: the learner's file.
        number: of the process; it teaches the class ``cNUMBER``.
        rounds: how often.
        barrier: of both processes, passed after loading and before the next round.
        saved: counts the saves of both processes that were not refused.
    """
    for seed in range(rounds):
        learner = Learner.load(path)
        learner.teach(images(number, 1, seed=seed), f"c{number}")
        barrier.wait()
        try:
            learner.save(path)
        except (FolderInUseError, ReplacedError):
            pass
        else:
            with saved.get_lock():
                saved.value += 1
        barrier.wait()
