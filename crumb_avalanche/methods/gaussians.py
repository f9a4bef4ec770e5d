"""Means and covariances of classes, from which several classifiers are computed."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.methods.class_tensors import copy_tensors
from crumb_avalanche.methods.closed_form import ClosedForm, Form
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.gaussian_solution import (
    CholeskyRoot,
    Group,
    LowRankRoot,
    ProductGroup,
    Solution,
    Span,
    products_of_rows,
    solve_groups,
)
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.packed_scatter import PackedScatter, cholesky_in_place

# Share of the mean square below which a variance is one of rounding.
EQUAL = 1e-10
# Directions of a class, where the number of classes is not known; more do not help.
MOST_DIRECTIONS = 64


class StoredScatters(NamedTuple):
    """What directions hold of the scatters of ``C`` classes.

    Attributes:
        rows: ``B`` of the classes, one below the other, ``(sum of k, D)`` float64;
            ``B^T B`` of a class is the part of its scatter that is stored.
        counts: ``(C,)`` int32, the numbers ``k`` of rows of each class.
        left_out_traces: ``(C,)`` float64, the part of the trace of each class's scatter
            that its rows leave out.
    """

    rows: Tensor
    counts: Tensor
    left_out_traces: Tensor

    @property
    def owners(self) -> Tensor:
        """The class of each row, ``(sum of k,)`` int64."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)


class Blends(NamedTuple):
    """Of what the covariances of ``C`` classes are blended; see ``BlendedGaussians``.

    Attributes:
        counts: ``(C,)`` float64, images of the classes.
        of_class: ``a_c``, ``(C,)``.
        isotropic: ``b_c``, ``(C,)``.
    """

    counts: Tensor
    of_class: Tensor
    isotropic: Tensor


class ClassGaussians(ClosedForm):
    """Base of classifiers by class means, class covariances and a common covariance.

    A class covariance is stored as principal directions. It is exact, up to rounding,
    for a class of at most one image more than ``directions``, and for all classes where
    ``directions`` is the number of features. Without a common scatter, the common
    covariance is the sum over the classes. With a common scatter and ``directions=0``,
    classes have no covariance of their own, and no bytes for one. ``merge`` and
    ``forget`` do what ``RegularizedDiscriminant`` says of its own.

    Attributes:
        classes: means and counts.
        directions: the directions of all classes, or ``None``.
        scatter: the common scatter, or ``None``.
        eight_bits: whether directions are int8 instead of float16.
    """

    classes: ClassMeans
    directions: ClassDirections | None
    scatter: PackedScatter | None
    eight_bits = False

    budgeted = True
    _free = frozenset({"n_classes", "total_directions"})

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
    ) -> None:
        """Allocate means, principal directions and a common scatter, all empty.

        Args:
            n_classes: number of classes.
            length: ``D``, number of features.
            directions: largest number of principal directions of a class, by which its
                scatter is stored.
            whole: whether a scatter of all classes together is stored, too.
            total_directions: largest number of directions of all classes; ``None`` for
                no limit.
        """
        self.classes = ClassMeans(n_classes, length)
        self.directions = None
        self.scatter = None
        if whole:
            self.scatter = PackedScatter(length)
        # Without a common scatter even 0 directions: the trace of each class is stored.
        if directions or not whole:
            self.directions = ClassDirections(
                n_classes,
                length,
                per_class=directions,
                total=total_directions,
                eight_bits=self.eight_bits,
            )

    # What a budget buys

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        """Return the bytes of one direction, with its scales."""
        eight_bits = settings.get("eight_bits", cls.eight_bits)
        return ClassDirections.bytes_of_one(length, eight_bits)

    @staticmethod
    def check_directions(n_classes: int, n_items: int) -> None:
        """Raise ValueError for a budget that buys less than a direction of each class.

        Args:
            n_classes: of the stream.
            n_items: directions that the budget buys in all.
        """
        if n_items < n_classes:
            raise ValueError(
                f"the budget buys {n_items} principal directions, but the stream has "
                f"{n_classes} classes, which need at least one each; raise the budget "
                "(mem_size)"
            )

    @classmethod
    def bought(
        cls, n_classes: int, length: int, n_items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the directions of each class: an equal share of those bought."""
        cls.check_directions(n_classes, n_items)
        return {"directions": min(n_items // n_classes, length)}

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, head_length: int) -> Form:
        """Build an instance without classes, whose directions the budget limits."""
        return cls(n_classes=0, length=length, directions=MOST_DIRECTIONS)

    @property
    def allocated_classes(self) -> int:
        """Number of classes that memory is allocated for."""
        means = self.classes.means
        row_bytes = means.stride(0) * means.element_size()
        return means.untyped_storage().nbytes() // row_bytes

    def least_bytes(self, n_classes: int) -> int:
        """Return the bytes of so many classes with a direction each."""
        without_directions = super().least_bytes(n_classes)
        if self.directions is None:
            return without_directions
        return without_directions + n_classes * self._direction_bytes()

    def _bytes_without_images(self, n_classes: int) -> int:
        """Return the bytes of so many classes; each takes as many as the first."""
        settings = {**self.settings, "n_classes": 0}
        if "total_directions" in settings:
            settings["total_directions"] = None  # which changes with the classes
        bytes_of_none = self.bytes_of(**settings)
        bytes_of_one = self.bytes_of(**{**settings, "n_classes": 1})
        return bytes_of_none + n_classes * (bytes_of_one - bytes_of_none)

    def _direction_bytes(self) -> int:
        """Return the bytes of one direction."""
        return self.item_bytes(self.settings["length"], self.settings)

    def fit_statistics(self, n_classes: int, budget: int) -> str:
        """Give up principal directions until the statistics fit into a budget.

        Args:
            n_classes: number of classes that are to fit.
            budget: in bytes.

        Returns:
            What is given up, in words; empty for nothing.
        """
        if self.directions is None:
            return ""
        bytes_for_directions = budget - self._bytes_without_images(n_classes)
        total = bytes_for_directions // self._direction_bytes()
        n_before = len(self.directions)  # of all classes
        self.limit(total)
        n_given_up = n_before - total
        if n_given_up <= 0:
            return ""
        return (
            f"{n_given_up} of {n_before} directions of classes are given up, the "
            "weakest first"
        )

    def limit(self, total_directions: int | None) -> None:
        """Set the largest number of principal directions of all classes together.

        It holds now and in later updates. The classes with the most directions lose
        their weakest ones, whose variance counts as spread evenly from then on.

        Args:
            total_directions: the number; ``None`` is no limit.

        Raises:
            ValueError: the number is negative.
        """
        if total_directions is not None and total_directions < 0:
            raise ValueError(
                f"total_directions is {total_directions}; give at least 0, or None for "
                "no limit"
            )
        self.settings["total_directions"] = total_directions
        if self.directions is not None:
            self.directions.total = total_directions
            self.directions.trim()
        self._solution = None  # the cached one is outdated

    # Statistics

    def transformed(self, features: Tensor) -> Tensor:
        """Compute the values whose statistics are stored, of ``(B, D)`` features."""
        return features

    def stored_scatters(self, seen: Tensor) -> StoredScatters:
        """Return what is stored of the scatters of the classes seen.

        Covariances are computed from it: ``B^T B`` of the rows ``B`` of a class is the
        stored part of its scatter. There are no rows where no directions are stored, as
        with a common scatter alone.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.

        Returns:
            ``rows`` of all classes, ``(sum of k, D)`` float64, and of each class,
            ``(C,)``, the ``counts`` ``k`` of its rows and ``left_out_traces``, the part
            of the trace of its scatter that its rows leave out.
        """
        if self.directions is None:
            n_classes = int(seen.sum())
            return StoredScatters(
                rows=torch.zeros(0, self.means.shape[1], dtype=torch.float64),
                counts=torch.zeros(n_classes, dtype=torch.int32),
                left_out_traces=torch.zeros(n_classes, dtype=torch.float64),
            )
        labels = seen.nonzero().flatten().tolist()  # the classes of the mask
        return StoredScatters(
            rows=self.directions.of_classes(labels),
            counts=self.directions.counts[seen],
            left_out_traces=self.directions.outside[seen].double(),
        )

    def common_covariance(self, seen: Tensor, scatters: StoredScatters) -> Tensor:
        """Compute the common covariance within classes: their scatter by their images.

        A scatter is a sum of outer products of features minus their class mean. It is
        the common one, where it is stored, or the sum over what the classes store.

        Args:
            seen: ``(n_classes,)`` bool, the classes with images.
            scatters: rows and left-out traces of these classes; without effect beside a
                common scatter.

        Returns:
            ``(D, D)`` float64.
        """
        if self.scatter is None:
            # B^T B of all rows; what they leave out of the trace is spread evenly.
            scatter = products_of_rows(scatters.rows.mT)
            scatter.diagonal().add_(scatters.left_out_traces.sum() / len(scatter))
        else:
            scatter = self.scatter.whole()
        return scatter.div_(float(self.image_counts[seen].sum()))

    def mean_variance(self, covariance: Tensor, seen: Tensor) -> float:
        """Return the mean of a covariance's diagonal.

        It is 1 for a single image of each class or equal ones, whose variance is
        rounding.
        """
        variance = float(covariance.diagonal().mean())
        mean_square = float(self.means[seen].double().square().mean())
        is_above_rounding = variance > EQUAL * mean_square
        return variance if is_above_rounding else 1.0

    @property
    def image_counts(self):
        """Images of each class, ``(n_classes,)`` int32."""
        return self.classes.counts

    @property
    def means(self) -> Tensor:
        """Means of the classes, ``(n_classes, D)`` float32."""
        return self.classes.means

    @property
    def remains_after_forget(self):
        """What ``forget`` leaves of a class, in words: its share of a scatter."""
        if self.scatter is None:
            return ""
        return "the share of the removed images in the common scatter"

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the means, scatter and directions of classes."""
        increments = self.classes.absorb(self.transformed(features), labels)
        for label, rows in increments.items():
            if self.scatter is not None:
                self.scatter.add(rows)
            if self.directions is not None:
                self.directions.extend(label, rows)
        if self.directions is not None:
            self.directions.trim()

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add the statistics of another instance with the same settings.

        Where both know a class, its scatter gets the spread between its two means, too.

        Args:
            other: the other instance, which is not changed.
            labels: the number in this instance of each class of the other one.
        """
        # A class is number ``mine`` here and ``theirs`` in the other instance.
        for merged in self.classes.absorb_means(other.classes, labels):
            # ``between`` is a row R; the class's scatter grows by R^T R.
            if self.scatter is not None:
                self.scatter.add(merged.between)
            if self.directions is not None:
                rows = other.directions.of_class(merged.theirs)
                self.directions.extend(merged.mine, torch.cat([rows, merged.between]))
                left_out = other.directions.outside[merged.theirs]
                self.directions.outside[merged.mine] += left_out
        if self.scatter is not None:
            self.scatter.merge(other.scatter)
        if self.directions is not None:
            self.directions.trim()

    def _grow(self, n_classes: int) -> None:
        """Add classes without images, up to a larger number."""
        self.classes.grow(n_classes)
        if self.directions is not None:
            self.directions.grow(n_classes)

    def _forget(self, label: int) -> None:
        """Remove a class; a scatter that classes share loses its part by images."""
        images_before = int(self.image_counts.sum())
        self.classes.forget(label)
        if self.directions is not None:
            self.directions.forget(label)
        if self.scatter is not None:
            self.scatter.scale(int(self.image_counts.sum()) / images_before)

    # Saving and loading

    def _statistics(self) -> list[ClassMeans | ClassDirections | PackedScatter]:
        """Return the parts that this instance has."""
        statistics = (self.classes, self.directions, self.scatter)
        return [tensors for tensors in statistics if tensors is not None]

    def named_tensors(self):
        """Return the tensors of all parts by name."""
        named = {}
        for statistics in self._statistics():
            named.update(statistics.named_tensors())
        return named

    def tensors(self):
        """Return the tensors that hold the statistics."""
        tensors = list(self.classes.tensors())
        if self.directions is not None:
            tensors += self.directions.tensors()
        if self.scatter is not None:
            tensors += self.scatter.strips
        return tensors

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for means or counts that no images give."""
        self.classes._check_values(tensors)

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of a state by name; nothing changes if one does not fit."""
        if self.directions is not None:
            self.directions.check_tensors(tensors)
        targets = self.classes.named_tensors()
        scatter = None
        if self.scatter is not None:
            # New strips, because copies of this instance share the present ones.
            scatter = PackedScatter(self.scatter.length)
            targets.update(scatter.named_tensors())
        copy_tensors(tensors, targets)
        self.scatter = scatter
        if self.directions is not None:
            self.directions.load(tensors)


class BlendedGaussians(ClassGaussians):
    """Base of classifiers by Gaussians whose covariances blend two.

    The covariances are ``b_c S + a_c C_c``, where ``S`` is the common one after
    shrinkage, and ``C_c`` what the directions hold of that of a class.

    Attributes:
        span: compare classes in the space that their means span where ``S`` is the unit
            matrix.
    """

    span = False

    @abstractmethod
    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Shrink the common covariance of the classes of a mask, in place."""

    @abstractmethod
    def _blend(self, counts: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a_c`` and ``b_c``, ``(C,)`` each.

        Args:
            counts: ``(C,)`` float64, images of the classes.
            left_out: ``(C,)``, shares of their traces that directions leave out.
        """

    def _variances_added(self, diagonal: Tensor, images: float) -> Tensor | None:
        """Return what shrinking adds to the diagonal of the common covariance.

        Args:
            diagonal: ``(D,)`` of it.
            images: that it is of.

        Returns:
            ``(D,)``, above 0; ``None`` if other values change, too.
        """
        return None

    def _solve(self, seen: Tensor) -> Solution:
        """Compute what the classes are scored by, where the common covariance is 1.

        Means and directions of the classes are mapped to where the shrunk common
        covariance is the unit matrix; with ``span``, to the space that the class means
        span there.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
        """
        means = self.means[seen].double()  # (C, D)
        centre = means.mean(0)
        scatters = self.stored_scatters(seen)
        low_rank = self._low_rank_root(seen, scatters)
        if low_rank is not None:  # there are fewer directions than features: faster
            return self._solved_by_products(seen, scatters, means, low_rank)
        common = self.common_covariance(seen, scatters)  # (D, D)
        self._shrink(common, seen)  # in place
        root = CholeskyRoot(cholesky_in_place(common))
        whitened_means = root.whiten(means - centre)
        # Directions and means of the classes in the space of the solution.
        if self.span:
            span = Span.of_means(whitened_means)
            projection = root.feature_axes(span.axes)
            rows = scatters.rows @ projection
            class_points = span.means
        else:
            projection = None
            rows = root.whiten(scatters.rows)
            class_points = whitened_means
        groups = self._groups(seen, scatters, rows, class_points)
        return Solution(
            centre=centre,
            projection=projection,
            root=root,
            means=class_points,
            whitened_means=whitened_means,
            groups=groups,
            # The inverse of the order in which the groups have the classes.
            order=torch.cat([group.members for group in groups]).argsort(),
        )

    def _low_rank_root(
        self, seen: Tensor, scatters: StoredScatters
    ) -> LowRankRoot | None:
        """Return the map to where the shrunk common covariance is 1, by low rank.

        It takes less time and memory than a Cholesky root, where the classes store
        fewer rows than there are features and no common scatter.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
            scatters: rows and left-out traces of these classes.

        Returns:
            ``None`` where there are more rows or a scatter, with ``span``, and where
            shrinking changes other values than the diagonal.
        """
        rows = scatters.rows
        length = rows.shape[1]
        has_low_rank = self.scatter is None and len(rows) < length
        if self.span or not has_low_rank:
            return None
        images = float(self.image_counts[seen].sum())
        # What the rows leave out of the scatter counts as spread evenly over features.
        left_out = scatters.left_out_traces.sum() / length
        diagonal = (rows.square().sum(0) + left_out) / images
        shrinkage = self._variances_added(diagonal, images)  # (D,), to the diagonal
        if shrinkage is None:
            return None
        return LowRankRoot.of_rows(
            rows, variances=shrinkage + left_out / images, images=images
        )

    def _solved_by_products(
        self,
        seen: Tensor,
        scatters: StoredScatters,
        means: Tensor,
        root: LowRankRoot,
    ) -> Solution:
        """Compute what the classes are scored by, from products with their rows.

        An image then has ``K`` products with all rows of the classes, which are fewer
        than its ``D`` features.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
            scatters: rows and left-out traces of these classes.
            means: ``(C, D)`` float64.
            root: map to where the shrunk common covariance is 1.
        """
        centre = means.mean(0)
        # (C, D), and products of the means with all rows, (C, K)
        whitened_means, products = root.whitened_rows(means - centre)
        groups = self._groups_by_products(seen, scatters, root, products)
        return Solution(
            centre=centre,
            projection=None,
            root=root,
            means=whitened_means,
            whitened_means=whitened_means,
            groups=groups,
            # The inverse of the order in which the groups have the classes.
            order=torch.cat([group.members for group in groups]).argsort(),
        )

    def _groups_by_products(
        self,
        seen: Tensor,
        scatters: StoredScatters,
        root: LowRankRoot,
        mean_products: Tensor,
    ) -> list[ProductGroup]:
        """Solve for all classes, those with equally many directions together.

        The covariance of a class of ``n`` images is ``b I + a / n B^T B``, with its own
        rows ``B``, where the shrunk common covariance is 1.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
            scatters: rows and left-out traces of these classes; ``K`` rows in all.
            root: map to where the shrunk common covariance is 1.
            mean_products: ``(C, K)``, products of the class means with all rows.
        """
        blends = self._blends(seen, scatters)  # a and b of each class
        spreads = (blends.of_class / blends.counts).sqrt()  # roots of a / n
        ends = scatters.counts.cumsum(0).tolist()  # of the rows of each class
        groups = []
        for count in scatters.counts.unique().tolist():
            members = (scatters.counts == count).nonzero().flatten()  # classes
            columns = []  # numbers of the rows of each class
            row_products = []  # (k, k) of each class, of its rows with each other
            for label in members.tolist():
                start = ends[label] - count
                columns.append(torch.arange(start, ends[label]))
                row_products.append(root.products_of_class(slice(start, ends[label])))
            group = ProductGroup.solve(
                members=members,
                columns=torch.stack(columns),
                spreads=spreads[members],
                row_products=torch.stack(row_products),
                mean_products=mean_products[members],
                isotropic=blends.isotropic[members],
                length=len(root.deviations),
            )
            groups.append(group)
        return groups

    def _groups(
        self, seen: Tensor, scatters: StoredScatters, rows: Tensor, points: Tensor
    ) -> list[Group]:
        """Solve for all classes, those with equally many directions together.

        The covariance of a class of ``n`` images is ``b I + a / n B^T B``, with its own
        rows ``B``, where the shrunk common covariance is 1.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
            scatters: rows and left-out traces of these classes.
            rows: ``B`` of all classes, where the covariance is 1, ``(sum of k, r)``.
            points: the class means there, ``(C, r)``.
        """
        blends = self._blends(seen, scatters)  # a and b of each class
        spreads = (blends.of_class / blends.counts).sqrt()  # roots of a / n
        # ``owners`` has the class of each row, (sum of k,).
        scaled = spreads[scatters.owners, None] * rows
        return solve_groups(scaled, scatters.counts, points, blends.isotropic)

    def _blends(self, seen: Tensor, scatters: StoredScatters) -> Blends:
        """Return the weights by which the covariance of each class is blended of two.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.
            scatters: rows and left-out traces of these classes.

        Returns:
            The images of each class, the weight of what is stored of its own
            covariance, and that of the common one, ``(C,)`` each.
        """
        counts = self.image_counts[seen].double()
        energies = scatters.rows.square().sum(1)
        # The trace of B^T B is the sum of the squares of B.
        stored_traces = torch.zeros_like(scatters.left_out_traces)
        stored_traces.index_add_(0, scatters.owners, energies)
        traces = scatters.left_out_traces + stored_traces
        left_out = scatters.left_out_traces / traces.clamp_min(1e-300)  # no 0 / 0
        of_class, isotropic = self._blend(counts, left_out)
        return Blends(counts=counts, of_class=of_class, isotropic=isotropic)

    def _answers(self, features: Tensor, solution: Solution) -> Tensor:
        """Compute log-densities ``(B, C)`` of ``(B, D)`` features."""
        return solution.scores(self.transformed(features))
