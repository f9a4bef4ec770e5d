"""Damage of learner files, of both formats."""

import shutil
from pathlib import Path
from random import Random

from PIL import Image
from support.faults.case import Kind
from support.faults.damage import Tree, damage_file
from support.faults.material import finished_run, pixels, write_weights

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.run_learner import RunLearner

METHODS = ("recommended", "ncm", "er")


class LearnerFiles(Kind):
    """Learners that crumb teach wrote (``crumb-learner-2``)."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        weights = write_weights(folder / "weights.safetensors")
        self.photo = Image.fromarray(pixels(1))
        for method in METHODS:
            learner = Learner(method, "small_cnn", weights, 32, budget_bytes=200_000)
            for number, label in enumerate(("Straße", "<b>mug")):
                for seed in (number, number + 10):
                    learner.teach(pixels(seed)[None], label)
            learner.save(folder / f"{method}.safetensors")
        weights.unlink()
        self.take_base()

    def take_base(self) -> None:
        self.tree = Tree(self.folder)
        self.answers = {}
        for path in self.tree.kept:
            self.path = path
            self.learn_base()
            self.answers[path] = self.expected, self.usual

    def damage(self, random: Random) -> str:
        self.path = random.choice(list(self.answers))
        self.expected, self.usual = self.answers[self.path]
        return damage_file(self.path, random)

    def act(self):
        learner = Learner.load(self.path)
        answer = learner.predict(self.photo)
        lessons = [(one.when, dict(one.images)) for one in learner.lessons]
        return answer.label, answer.confidence, answer.known, answer.runners_up, learner.classes, lessons

    def restore(self) -> None:
        self.tree.restore()


class RunLearnerFiles(LearnerFiles):
    """Learners that crumb run wrote (``crumb-learner-1``)."""

    def __init__(self, folder: Path):
        Kind.__init__(self, folder)
        self.photo = Image.fromarray(pixels(1))
        for strategy in ("ncm", "crumb"):
            run = finished_run(folder, strategy)
            (run / "learner.safetensors").rename(folder / f"{strategy}.safetensors")
            shutil.rmtree(run)
        shutil.rmtree(folder / "clips")
        self.take_base()

    def act(self):
        learner = RunLearner(self.path)
        answer = learner.predict(self.photo)
        return answer.label, answer.confidence, answer.runners_up, learner.classes, learner.method
