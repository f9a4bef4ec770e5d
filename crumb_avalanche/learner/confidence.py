"""Stand-in until the real one."""


class Confidence:
    def __init__(self):
        self.n = []

    def observe(self, statistics, features, scores, label):
        self.n.append(label)

    def probabilities(self, scores):
        return scores.float().softmax(1)

    def known(self, statistics, features, scores):
        return True

    def forget(self, label):
        pass

    def merge(self, other, labels):
        pass

    def state_dict(self):
        return {"n": list(self.n)}

    def load_state_dict(self, s):
        self.n = list(s["n"])
