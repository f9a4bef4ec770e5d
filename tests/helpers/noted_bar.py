"""A progress bar that notes what it counts, and may end a step as an interrupt does."""


class NotedBar:
    """Give it as ``progress``, for one bar or several.

    Attributes:
        seen: title, unit, number done and total of each bar when it is made and after
            each step.
        text: the last text beside the numbers.
    """

    def __init__(self, stop=None):
        self.seen, self.text, self._stop = [], "", stop

    def __call__(self, total, title, unit, *, initial=0, scale=False):
        self.seen.append((title, unit, initial, total))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @property
    def numbers(self):
        """Number done and total, of all bars together."""
        return [step[2:] for step in self.seen]

    def update(self, count=1):
        title, unit, before, total = self.seen[-1]
        self.seen.append((title, unit, before + count, total))
        if self.numbers[-1] == self._stop:
            raise KeyboardInterrupt

    def set_postfix_str(self, text, refresh=True):
        self.text = text
