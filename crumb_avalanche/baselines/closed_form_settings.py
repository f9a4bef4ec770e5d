"""Settings of the classifiers in closed form. Imports neither torch nor Avalanche."""

from dataclasses import dataclass

from crumb_avalanche.system.setting_ranges import InRange


@dataclass(frozen=True)
class SldaSettings(InRange):
    """Settings of streaming LDA.

    Attributes:
        shrinkage: share of the unit matrix in the covariance.
    """

    shrinkage: float = 1e-4

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.shrinkage <= 1:
            raise ValueError(f"shrinkage is {self.shrinkage}; it is a share: above 0 and at most 1")


@dataclass(frozen=True)
class RanpacSettings(InRange):
    """Settings of RanPAC.

    Attributes:
        projection: number M of random features; the Gram matrix takes ``4 * M**2`` bytes. The authors' 10,000 take
            400 MB; 640 fit into the 2.26 MB of 15 images for up to 240 classes.
        ridge: ridge of the regression, in units of the mean of the Gram matrix's diagonal. (The authors choose it after
            every experience on held-out images, which a single pass does not have.)
    """

    projection: int = 640
    ridge: float = 1e-3

    def __post_init__(self):
        super().__post_init__()
        if self.projection < 1:
            raise ValueError(f"projection is {self.projection}; give at least 1 random feature")
        if not self.ridge > 0:
            raise ValueError(f"ridge is {self.ridge}; give a positive number, or the equations may have no solution")


@dataclass(frozen=True)
class RdaSettings(InRange):
    """Settings of regularised discriminant analysis.

    Attributes:
        own: share of a class's own covariance; the rest is the common one. 0 is linear discriminant analysis.
        shrinkage: shrinkage of the common covariance, in units of features by images. The default of 1 is large
            because frames of a video are alike and determine it less well than as many unrelated images.
        maps: use features of the map that enters the plastic layers, besides those of the head's input.
        deviations: use deviations over locations, besides means.
        power: exponent of the features' absolute values; 1 leaves them unchanged.
    """

    own: float = 0.3
    shrinkage: float = 1.0
    maps: bool = True
    deviations: bool = True
    power: float = 0.7

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.own < 1:
            raise ValueError(f"own is {self.own}; it is a share: at least 0 and below 1")
        if not self.shrinkage > 0:
            raise ValueError(f"shrinkage is {self.shrinkage}; give a positive number, or some covariance is singular")
        if not 0 < self.power <= 1:
            raise ValueError(f"power is {self.power}; features are raised to it: above 0 and at most 1")
