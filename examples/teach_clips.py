"""Teach a learner objects by short clips, ask it, correct it, and keep it.

    python examples/teach_clips.py

The clips are drawn; a folder, a video or a list of images takes their place:
``learner.teach("clips/mug", "mug")``.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks_toybox_ilab import ToyShapesFrames
from crumb_avalanche import Learner


def clip_of(name: str, session: int) -> np.ndarray:
    """Draw the frames of a session with two objects: ``(N, 96, 96, 3)`` uint8."""
    table = ToyShapesFrames(
        classes=(name,),
        objects_per_class=2,
        sessions=2,
        frames_per_clip=5,
        size=96,
        held_out_sessions=1,
    )
    rows = [
        row for row in range(len(table)) if table.session[row].endswith(str(session))
    ]
    return np.stack([np.array(table.read(row)) for row in rows])


def main() -> None:
    """Teach three shapes, one of them under a wrong name at first."""
    learner = Learner(image_size=96)
    for name in ("fish", "key"):
        lesson = learner.teach(clip_of(name, 0), name)
        print(f"taught {lesson.images}")
    lesson = learner.teach(clip_of("star", 0), "flower")
    learner.undo(lesson.number)
    learner.teach(clip_of("star", 0), "star")

    for name in ("fish", "key", "star"):
        answers = [learner.predict(frame).label for frame in clip_of(name, 1)]
        print(f"{name}: {answers.count(name)} of {len(answers)} new frames")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.safetensors"
        learner.save(path)
        names = [taught.name for taught in Learner.load(path).classes]
        print(f"{path.stat().st_size:,} bytes hold {', '.join(names)} and the network")


if __name__ == "__main__":
    main()
