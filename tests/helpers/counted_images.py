"""Counts the decoded images that are alive."""

import weakref


class Counted:
    """Replaces a function that decodes, and counts the images that are alive."""

    def __init__(self, function):
        self.function = function
        self.alive = self.most = self.calls = 0

    def __call__(self, *arguments, **options):
        image = self.function(*arguments, **options)
        weakref.finalize(image, self.end)
        self.alive += 1
        self.calls += 1
        self.most = max(self.most, self.alive)
        return image

    def end(self):
        self.alive -= 1
