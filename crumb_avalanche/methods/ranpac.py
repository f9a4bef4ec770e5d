"""Ridge regression on a random projection of features: RanPAC, ACIL, GACL and F-OAL.

RanPAC (McDonnell et al., NeurIPS 2023) sums up the Gram matrix and solves the
regression when it is asked. ACIL (Zhuang et al., NeurIPS 2022), GACL (NeurIPS 2024) and
F-OAL (NeurIPS 2024) update inverse and weights recursively; for the same ridge both
give the same answers after every batch, up to rounding, so that one class serves all
four.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from crumb_avalanche.methods.class_tensors import (
    add_counts,
    add_rows,
    check_not_negative,
)
from crumb_avalanche.methods.closed_form import ClosedForm, Form
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.typicality import TINY, Typicality
from crumb_avalanche.system.setting_ranges import NotNegative, Range

MOST_PROJECTION = 50_000  # random features
Projection = Annotated[int, Range(0, MOST_PROJECTION)]
PAGE = 4096  # bytes of the items that a budget buys
WITHOUT_BUDGET = 640  # random features
MOST_OF_LEARNER = 2000  # random features
STORES = (
    "the Gram matrix of the random features, and their sum and number for each class"
)

# In units of the mean of the Gram matrix's diagonal; smaller ones are near the rounding
# of a float32 matrix.
RIDGES = tuple(10.0**power for power in range(-5, 3))
# Share of the images beyond which so many effective parameters fit noise.
MOST_FITTED = 0.95
# Sum of squared residuals of an image below which float32 sums say nothing.
ROUNDING = 1e-5
# Share by which a smaller ridge has to lower the error, so that rounding decides
# nothing.
BETTER = 1e-3


def chosen_ridge(values: Tensor, energies: Tensor, n_images: int) -> float:
    """Return the one of ``RIDGES`` with the least generalised cross-validation error.

    Golub, Heath and Wahba, 1979, for a ridge regression of one-hot targets. The error
    is ``N r / (N - p)^2``, with the sum of squared residuals ``r`` and the number of
    effective parameters ``p``. Ridges with ``p`` above 95 % of the images are left out;
    if all are, and of equally good ones, the largest ridge is returned.

    Args:
        values: ``(M,)``, eigenvalues of the Gram matrix ``H^T H`` of the inputs ``H``.
        energies: ``(M,)``, squared lengths of ``H^T Y`` along its eigenvectors, with
            the one-hot targets ``Y``.
        n_images: ``N``.
    """
    best = RIDGES[-1]
    least_error = float("inf")
    for ridge in reversed(RIDGES):
        ridged = values + ridge
        n_parameters = float((values / ridged).sum())  # p, larger the smaller the ridge
        fits_noise = n_parameters > MOST_FITTED * n_images
        if fits_noise:
            break
        # N - r of the weights (G + ridge)^-1 H^T Y, by eigenvalues g and energies e of
        # G = H^T H: the sum of e (g + 2 ridge) / (g + ridge)^2.
        explained = float((energies * (values + 2 * ridge) / ridged.square()).sum())
        residuals = max(n_images - explained, ROUNDING * n_images)  # r
        error = residuals / (n_images - n_parameters) ** 2
        if error < (1 - BETTER) * least_error:  # by more than rounding
            best = ridge
            least_error = error
    return best


class RandomFeatures(ClosedForm):
    """Base of forms with ``projection`` random features, drawn from a seed."""

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, head_length: int) -> Form:
        """Build an instance whose Gram matrix takes half of the budget.

        Args:
            length: number of features.
            budget: in bytes; the matrix of ``M`` random features takes ``4 M^2``.
            head_length: without effect.
        """
        columns_in_half = int((budget / 8) ** 0.5)
        projection = min(MOST_OF_LEARNER, max(1, columns_in_half))
        return cls(0, length, projection=projection)


class FillsBudget(RandomFeatures):
    """Base of forms with as many random features as the budget buys.

    It buys them where the setting ``projection`` is 0. A random feature has no fixed
    bytes, as matrices grow with their square: they are bought by the page.
    """

    budgeted = True
    # Their ridge may be 0, and not all hold a Gram matrix: an image is typical by its
    # largest score.
    has_leverage = False

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        """Return the bytes of a page, by which the budget buys matrices."""
        return PAGE

    @classmethod
    def fixed_bytes(
        cls, n_classes: int, length: int, head_length: int, settings: Mapping[str, Any]
    ) -> int:
        """Return the bytes of a fixed ``projection``; 0 where the budget decides it."""
        if not settings["projection"]:
            return 0
        return super().fixed_bytes(n_classes, length, head_length, settings)

    @classmethod
    def bought(
        cls, n_classes: int, length: int, n_items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the ``projection`` whose matrices fill the pages that are bought.

        It is at most 50,000, however many pages there are.
        """
        if settings["projection"] or not n_items:
            return {}

        def fits(projection: int) -> bool:
            """Whether statistics with so many random features fit into the pages."""
            arguments = {**settings, "projection": projection}
            return cls.bytes_of(n_classes, length, **arguments) <= n_items * PAGE

        return {"projection": largest_that_fits(fits, MOST_PROJECTION)}


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number of 1 to ``most`` that fits; 1 if none does.

    Args:
        fits: whether a number fits; with it all smaller ones do.
        most: the largest number that is tried.
    """
    low = 1
    high = most + 1  # bisection: ``low`` fits, ``high`` does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


@register(
    "ranpac",
    summary="ridge regression on a random projection of frozen features",
    source=(
        "McDonnell et al., RanPAC: Random Projections and Pre-trained Models for "
        "Continual Learning, NeurIPS 2023"
    ),
    stores=STORES,
)
class RandomProjection(RandomFeatures):
    """Ridge regression on a random projection of the features (RanPAC, section 4).

    ``H = relu(X W)`` with a fixed Gaussian ``W``. The state holds the Gram matrix ``H^T
    H``, the class sums ``Y^T H`` and the seed of ``W``, which is drawn on first use.
    The order of the images does not matter, up to rounding.

    ``forget`` removes the sum of a class and leaves the Gram matrix: the removed images
    count from then on as images of none of the classes.

    Typical images have a large score, with a ``ridge`` above 0 also relative to the
    root of their leverage in the regression.

    Deviation: RanPAC trains its network on the first experience, which stays frozen
    here.

    Attributes:
        projection: number of columns ``M`` of ``W``; the Gram matrix takes ``4 * M**2``
            bytes. The authors' 10,000 take 400 MB; 640 fit into the 2.26 MB of 15
            images for up to 240 classes. 0 is as many as the budget buys, in forms that
            fill it, or 640.
        ridge: summand of the Gram matrix's diagonal, in units of the diagonal's mean. 0
            chooses it from ``RIDGES`` by generalised cross validation (Golub, Heath and
            Wahba, 1979) whenever the regression is solved. RanPAC chooses it on a
            held-out fifth of every step, which needs a second Gram matrix; this needs
            no byte more.
        activation: ``relu``; or ``sigmoid``, for features of size 1.
        gram: ``(M, M)`` float32, 1,638,400 bytes at 640.
        sums: ``(n_classes, M)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    projection: Projection = 640
    ridge: NotNegative = 1e-3

    temperature = 0.06
    by_class = ("sums", "counts")
    shared = ("gram",)
    activation: ClassVar[Literal["relu", "sigmoid"]] = "relu"
    has_leverage: ClassVar[bool] = True
    remains_after_forget = "the share of the removed images in the Gram matrix"
    _cached_names = ("_solution", "_weights")

    def _allocate(self, n_classes: int, length: int, seed: int = 0) -> None:
        """Allocate Gram matrix, class sums and counts."""
        columns = self.projection or WITHOUT_BUDGET
        self.gram = torch.zeros(columns, columns, dtype=torch.float32)
        self.sums = torch.zeros(n_classes, columns, dtype=torch.float32)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)
        self._weights: Tensor | None = None  # W, drawn on first use

    def __getstate__(self):
        return {**super().__getstate__(), "_weights": None}

    def project(self, features: Tensor) -> Tensor:
        """Compute ``H``, ``(B, M)`` float64, of ``(B, D)`` features."""
        values = features.double() @ self._random_weights()
        if self.activation == "relu":
            return values.relu()
        return (values / self.settings["length"] ** 0.5).sigmoid()

    def _random_weights(self) -> Tensor:
        """Return ``W`` of the random projection, ``(D, M)`` float64; drawn once."""
        if self._weights is None:
            generator = torch.Generator().manual_seed(self.settings["seed"])
            shape = (self.settings["length"], self.sums.shape[1])
            with torch.inference_mode(False):
                self._weights = torch.randn(
                    shape, generator=generator, dtype=torch.float64
                )
        return self._weights

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the Gram matrix and to the class sums."""
        hidden = self.project(features)
        self.gram = (self.gram.double() + hidden.mT @ hidden).float()
        self.sums.index_add_(0, labels, hidden.float())
        add_counts(self.counts, labels)

    def _solve(self, seen: Tensor) -> Tensor:
        """Solve the ridge regression of one-hot targets from random features.

        The weights are ``(H^T H + ridge I)^-1 H^T Y`` of the random features ``H`` of
        all images and their targets ``Y``. A ``ridge`` of 0 stands for one that is
        chosen by generalised cross-validation.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.

        Returns:
            ``(M, C)`` float64.
        """
        gram = self.gram.double()  # H^T H
        class_sums = self.sums[seen].double().mT  # H^T Y
        # The ridge is in units of the mean of the diagonal, which is 0 where all
        # features are.
        unit = float(gram.diagonal().mean()) or 1.0
        if self.ridge:
            gram.diagonal().add_(self.ridge * unit)
            return torch.linalg.solve(gram, class_sums)
        eigenvalues, vectors = torch.linalg.eigh(gram)
        eigenvalues = eigenvalues.clamp_min(0)  # negative ones are rounding
        along = vectors.mT @ class_sums  # class sums along the eigenvectors
        # In units as well, as if features were divided by the root of the unit.
        energies = along.square().sum(1) / unit
        n_images = int(self.counts.sum())
        ridge = unit * chosen_ridge(eigenvalues / unit, energies, n_images)
        return vectors @ (along / (eigenvalues + ridge).unsqueeze(1))

    def _answers(self, features: Tensor, solution: Tensor) -> Tensor:
        """Score ``(B, D)`` features by the weights ``(M, C)``: ``(B, C)``."""
        return self.project(features) @ solution

    def _typical_space(self, nothing: Tensor | None) -> Tensor | None:
        """Return the root of the ridged Gram matrix, ``(M, M)``, for the leverage.

        ``None`` for forms without, and where each solution chooses its ridge: an image
        is typical by its largest score there.
        """
        if not self.has_leverage or not self.ridge:
            return None
        gram = self.gram.double()
        # Of the ridge; the mean is 0 where all features are.
        unit = float(gram.diagonal().mean()) or 1.0
        gram.diagonal().add_(self.ridge * unit)
        return torch.linalg.cholesky(gram)

    def _typicality(
        self, features: Tensor, space: Tensor | None, left_out: int | None
    ) -> Typicality:
        """Measure how typical images are by their largest score and their leverage.

        The leverage ``h G^-1 h^T`` of random features ``h``, with the ridged Gram
        matrix ``G``, is small for images like many that were learned.

        Args:
            features: ``(B, D)`` float64.
            space: Cholesky root of ``G``, ``(M, M)``; ``None`` for the largest score
                alone.
            left_out: column of a class; the values are measured without it, too.

        Returns:
            The scores ``(B, C)``, and the values ``(B, 3)`` of each image, larger ones
            of more typical images.
        """
        if space is None:
            return super()._typicality(features, space, left_out)
        hidden = self.project(features)
        # With G = L L^T, h G^-1 h^T is the squared length of L^-1 h^T.
        solved = torch.linalg.solve_triangular(space, hidden.mT, upper=False)
        root_leverages = solved.square().sum(0).clamp_min(TINY).sqrt()  # (B,)

        def values_of(scores: Tensor) -> Tensor:
            """Return the values ``(B, 3)`` of scores ``(B, C)``; see ``Typicality``."""
            largest = scores.amax(1)
            cosine = largest / root_leverages
            return torch.stack([largest, cosine, cosine], 1)

        scores = self.classifier()(features)
        return Typicality.of_scores(scores, values_of, left_out)

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add Gram matrix and class sums of another instance."""
        self.gram += other.gram
        add_rows(self.sums, other.sums, labels)
        add_rows(self.counts, other.counts, labels)

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for values that no images give."""
        super()._check_values(tensors)
        if "gram" in tensors:
            check_not_negative("gram", tensors["gram"].diagonal())


@register(
    "ranpac_gcv",
    summary=(
        "ridge regression on a random projection of frozen features, its ridge chosen "
        "by cross validation"
    ),
    source=(
        "McDonnell et al., RanPAC, NeurIPS 2023; ridge by generalised cross validation "
        "(Golub et al., 1979)"
    ),
    stores=STORES,
)
class RanpacGCV(FillsBudget, RandomProjection):
    """RanPAC that fills the budget and chooses its ridge as it learns."""

    projection = 0
    ridge = 0.0


@register(
    "acil",
    summary=(
        "ridge regression on a random projection of frozen features, as ranpac, "
        "filling the budget"
    ),
    source="Zhuang et al., ACIL, NeurIPS 2022; GACL, NeurIPS 2024",
    stores=STORES,
)
class ACIL(FillsBudget, RandomProjection):
    """ACIL and GACL, as one solution instead of a recursion.

    Their recursion gives the weights that the Gram matrix and the class sums give at
    once.

    Deviations: the ridge is in units of the mean of the Gram matrix's diagonal, so it
    grows with the images, where the authors' is a constant: 0.1 for ACIL and 100 for
    GACL. ACIL trains its network on the first classes; here it stays frozen.
    """

    projection = 0
    ridge = 1e-2


@register(
    "foal",
    summary=(
        "ridge regression on a random sigmoid projection of frozen features of two "
        "layers"
    ),
    source=(
        "Zhuang, Liu et al., F-OAL: Forward-only Online Analytic Learning, NeurIPS 2024"
    ),
    stores=STORES,
)
class FOAL(FillsBudget, RandomProjection):
    """F-OAL: ``H = sigmoid(X W / D^(1/2))``, of features of several layers.

    Deviations: F-OAL averages the outputs of all blocks of a transformer, which have
    equal sizes; here the means of the map at the cut and of the head's input, which may
    have different sizes, are joined, and the random projection adds them up. The ridge
    is in units of the mean of the Gram matrix's diagonal; the authors' is 1.
    """

    moments: ClassVar = dict(maps=True, equal_lengths=True)
    activation = "sigmoid"

    projection = 0
    ridge = 1e-3
