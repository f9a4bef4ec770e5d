"""Settings of the classifiers in closed form. Imports neither torch nor Avalanche."""

from dataclasses import dataclass
from typing import ClassVar

from crumb_avalanche.system.setting_ranges import InRange


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


CELLS = 2  # each way, of a setting of 0


@dataclass(frozen=True)
class FeatureSettings(InRange):
    """Settings of the features of a classifier in closed form; the defaults are the averaged input of the head.

    Attributes:
        maps: use features of the map that enters the plastic layers, besides those of the head's input.
        deviations: use deviations over locations, besides means.
        power: exponent of the features' absolute values; 1 leaves them unchanged.
        equal_lengths: scale the features of each kind, of each image, to a mean square of 1.
        cells: take the map's means over each cell of a grid of ``cells x cells`` instead of the whole map.
    """

    maps: bool = False
    deviations: bool = False
    power: float = 1.0
    equal_lengths: bool = False
    cells: int = 1

    _least_cells: ClassVar = 1

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.power <= 1:
            raise ValueError(f"power is {self.power}; features are raised to it: above 0 and at most 1")
        if not self._least_cells <= self.cells <= 8:
            raise ValueError(
                f"cells is {self.cells}; give {self._least_cells} to 8: a feature map is divided into so many cells "
                "each way"
            )


@dataclass(frozen=True)
class SldaSettings(FeatureSettings):
    """Settings of streaming LDA.

    Attributes:
        shrinkage: share of the unit matrix in the covariance, in squared units of the features.
    """

    shrinkage: float = 1e-4

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.shrinkage <= 1:
            raise ValueError(f"shrinkage is {self.shrinkage}; it is a share: above 0 and at most 1")


@dataclass(frozen=True)
class RdaSettings(FeatureSettings):
    """Settings of regularised discriminant analysis.

    The means of the map are those of 2 x 2 cells, which tell where in the image something is.

    Attributes:
        cells: see ``FeatureSettings``. 0 is 2 as long as the budget buys at least 8 directions of each class with
            them; when a further class leaves less, the features are those of the head's input alone from then on.
        own: share of a class's own covariance; the rest is the common one. 0 is linear discriminant analysis.
        own_images: number of images with which a class has half of the share ``own``; 0 gives every class ``own``, and
            serves streams of classes of unequal size better.
        shrinkage: shrinkage of the common covariance, in units of features by images. The default of 1 is large
            because frames of a video are alike and determine it less well than as many unrelated images.
        diagonal: shrink each feature by its own variance instead of the mean variance.
        span: compare classes in the space that their means span, instead of that of all features.
        eight_bits: store directions as int8 with a scale for each 32 values, instead of float16.
        head_share: share of the answer that the head's input alone gives, where there are other features, too. Both
            answers come from the same statistics.
        known_classes: divide the budget by the number of classes of the whole stream, and decide on ``cells`` by it,
            before the first image; otherwise nothing depends on the classes to come.
    """

    maps: bool = True
    power: float = 0.7
    equal_lengths: bool = True
    cells: int = 0
    own: float = 0.1
    own_images: float = 0.0
    shrinkage: float = 1.0
    diagonal: bool = True
    span: bool = False
    eight_bits: bool = True
    head_share: float = 1 / 3
    known_classes: bool = False

    _least_cells: ClassVar = 0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.own < 1:
            raise ValueError(f"own is {self.own}; it is a share: at least 0 and below 1")
        if not 0 <= self.head_share < 1:
            raise ValueError(f"head_share is {self.head_share}; it is a share: at least 0 and below 1")
        if not self.own_images >= 0:
            raise ValueError(f"own_images is {self.own_images}; it is a number of images: at least 0")
        if not self.shrinkage > 0:
            raise ValueError(f"shrinkage is {self.shrinkage}; give a positive number, or some covariance is singular")


@dataclass(frozen=True)
class ProjectionSettings(FeatureSettings):
    """Settings of random features.

    Attributes:
        projection: number of random features; 0 for as many as the budget buys, or 640 without a budget.
    """

    projection: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.projection < 0:
            raise ValueError(
                f"projection is {self.projection}; give at least 1 random feature, or 0 to fill the budget"
            )


@dataclass(frozen=True)
class AcilSettings(ProjectionSettings):
    """Settings of ACIL.

    Attributes:
        ridge: ridge of the regression, in units of the mean of the Gram matrix's diagonal. (The authors' is a constant:
            0.1 for ACIL and 100 for GACL.)
    """

    ridge: float = 1e-2

    def __post_init__(self):
        super().__post_init__()
        if not self.ridge > 0:
            raise ValueError(f"ridge is {self.ridge}; give a positive number, or the equations may have no solution")


@dataclass(frozen=True)
class FoalSettings(AcilSettings):
    """Settings of F-OAL, whose features are those of several layers; see ``AcilSettings``. The authors' ridge is 1."""

    maps: bool = True
    equal_lengths: bool = True
    ridge: float = 1e-3


@dataclass(frozen=True)
class KldaSettings(ProjectionSettings):
    """Settings of kernel linear discriminant analysis.

    Attributes:
        gamma: factor of the squared distance in the kernel. Features have a mean square of 1 (``equal_lengths``), so
            that it does not depend on their scale.
        shrinkage: share of the unit matrix in the covariance, in units of the mean variance.
    """

    equal_lengths: bool = True
    gamma: float = 1e-4
    shrinkage: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        for name in ("gamma", "shrinkage"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a positive number")


@dataclass(frozen=True)
class FecamSettings(FeatureSettings):
    """Settings of FeCAM.

    Attributes:
        covariance: ``class`` for a covariance of each class, as principal directions: as many as the budget buys, and
            the full covariance where it buys as many as there are features (``2 D**2`` bytes a class). ``common`` for
            one covariance of all classes, in ``2 D (D + 64)`` bytes.
        shrink_diagonal, shrink_others: shrinkage of variances and of other elements, in units of their means.
        tukey: exponent of the features' absolute values, after ``power``.
    """

    covariance: str = "class"
    shrink_diagonal: float = 3.0
    shrink_others: float = 3.0
    tukey: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.covariance not in ("class", "common"):
            raise ValueError(f"covariance is {self.covariance!r}; use class or common")
        if not 0 <= self.shrink_others <= self.shrink_diagonal or not self.shrink_diagonal > 0:
            raise ValueError(
                f"shrink_diagonal is {self.shrink_diagonal} and shrink_others {self.shrink_others}; give a positive "
                "shrink_diagonal, and shrink_others from 0 to shrink_diagonal, or some covariance is singular"
            )
        if not 0 < self.tukey <= 1:
            raise ValueError(f"tukey is {self.tukey}; features are raised to it: above 0 and at most 1")


@dataclass(frozen=True)
class SrdaSettings(FeatureSettings):
    """Settings of Deep SRDA.

    Attributes:
        own: share of a class's own covariance; the rest is the common one.
        shrinkage: share of the unit matrix, in units of the mean variance.
    """

    own: float = 0.1
    shrinkage: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.own < 1:
            raise ValueError(f"own is {self.own}; it is a share: at least 0 and below 1")
        if not 0 < self.shrinkage < 1:
            raise ValueError(f"shrinkage is {self.shrinkage}; it is a share: above 0 and below 1")


@dataclass(frozen=True)
class LrRgdaSettings(FeatureSettings):
    """Settings of LR-RGDA.

    Attributes:
        own, common, ridge: weights of a class's own covariance, of the common one, and of the unit matrix in units of
            the mean variance.
        rank: largest number of directions of a class, where the budget buys more.
    """

    own: float = 0.1
    common: float = 0.9
    ridge: float = 0.1
    rank: int = 64

    def __post_init__(self):
        super().__post_init__()
        if not self.own >= 0:
            raise ValueError(f"own is {self.own}; give at least 0")
        for name in ("common", "ridge"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; give a positive number, or some covariance is singular"
                )
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; give at least 1 direction")
