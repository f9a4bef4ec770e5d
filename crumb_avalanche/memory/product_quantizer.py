"""Product quantizer of feature maps.

Jégou, Douze and Schmid, "Product Quantization for Nearest Neighbor Search", PAMI 2011.
REMIND stores its codes (Hayes et al., ECCV 2020). Unlike ``Codebook``, it has a table
of centroids for each group of channels, searches the nearest row in L2, and is not
trained after ``fit``.
"""

import faiss
import torch
from torch import Tensor, nn
from torch.nn import functional

from crumb_avalanche.memory.packing import bits_per_code, packed_bytes
from crumb_avalanche.models.row_length import largest_divisor
from crumb_avalanche.models.search import nearest_rows

LARGEST_TABLE = 256  # centroids of a group; a code is a byte
ITERATIONS = 25  # of k-means


class ProductQuantizer(nn.Module):
    """Encode each group of channels at a location by the nearest centroid of the group.

    Axes: ``B`` images, ``C`` channels, ``H, W`` locations, ``m`` groups of ``d = C /
        m`` consecutive channels.

    Args:
        channels: number of channels ``C``.
        sub_quantizers: number of groups ``m``.
        centroids: number of centroids ``K`` of a group, from 2 to 256.

    Attributes:
        centroids: ``(m, K, d)`` float32 buffer, ``4 * K * C`` bytes; zeros until
            ``fit`` or a state dict fills it.

    Raises:
        ValueError: ``m`` does not divide ``C``, or ``K`` is out of range.
    """

    def __init__(self, channels: int, sub_quantizers: int = 32, centroids: int = 256):
        super().__init__()
        if sub_quantizers < 1 or channels % sub_quantizers:
            raise ValueError(
                f"sub_quantizers={sub_quantizers} does not divide the {channels} "
                "channels of the feature map; give a divisor, such as "
                f"{largest_divisor(channels, max(1, sub_quantizers))}"
            )
        if not 2 <= centroids <= LARGEST_TABLE:
            raise ValueError(
                f"centroids is {centroids}; a code is one byte, so give 2 to "
                f"{LARGEST_TABLE}"
            )
        shape = (sub_quantizers, centroids, channels // sub_quantizers)
        self.register_buffer("centroids", torch.zeros(shape, dtype=torch.float32))

    @property
    def channels(self) -> int:
        """Number of channels ``C``."""
        return self.sub_quantizers * self.centroids.shape[2]

    @property
    def sub_quantizers(self) -> int:
        """Number of groups ``m``."""
        return self.centroids.shape[0]

    @property
    def bits(self) -> int:
        """Bits of one stored code."""
        return bits_per_code(self.centroids.shape[1])

    @property
    def table_bytes(self) -> int:
        """Bytes of the centroids (524,288 for 256 of 512 channels)."""
        return self.centroids.numel() * self.centroids.element_size()

    def map_bytes(self, height: int, width: int) -> int:
        """Return the bytes of one map's packed codes.

        They are 5,408 for 13 x 13 locations and 32 sub-quantizers of 256 centroids.
        """
        return packed_bytes(self.sub_quantizers * height * width, self.bits)

    @property
    def fitted(self) -> bool:
        """Whether the centroids have been set."""
        return bool(self.centroids.any())

    @torch.no_grad()
    def fit(self, vectors: Tensor, seed: int = 0) -> "ProductQuantizer":
        """Fit the centroids of each group of channels by k-means (faiss).

        Args:
            vectors: ``(N, C)`` float, the channels of single locations; faiss uses 256
                per centroid.
            seed: of the k-means of the first group; each further one adds 1.

        Returns:
            The quantizer itself.

        Raises:
            ValueError: the number of channels differs, a value is not finite, or there
                are fewer vectors than centroids.
        """
        n_groups, n_centroids, dim = self.centroids.shape
        if vectors.dim() != 2 or vectors.shape[1] != self.channels:
            raise ValueError(
                f"the vectors have shape {tuple(vectors.shape)}, but must have (N, "
                f"{self.channels})"
            )
        if len(vectors) < n_centroids:
            raise ValueError(
                f"{len(vectors)} vectors cannot make {n_centroids} centroids; give "
                "more feature maps, or lower centroids"
            )
        _check_finite(vectors)
        faiss.omp_set_num_threads(torch.get_num_threads())
        for group in range(n_groups):
            slices = vectors[:, group * dim : (group + 1) * dim].float().cpu()
            kmeans = faiss.Kmeans(
                d=dim,
                k=n_centroids,
                niter=ITERATIONS,
                seed=seed + group,
                min_points_per_centroid=1,  # it warns of fewer
            )
            kmeans.train(slices.contiguous().numpy())
            centroids = torch.from_numpy(kmeans.centroids)
            self.centroids[group] = centroids.to(self.centroids.device)
        return self

    @torch.no_grad()
    def encode(self, feature_map: Tensor) -> Tensor:
        """Replace every slice by the index of the L2-nearest centroid of its group.

        A slice is the values of one of ``m`` groups of channels at a location. Ties go
        to the lowest index.

        Args:
            feature_map: ``(B, C, H, W)`` float.

        Returns:
            ``(B, m, H, W)`` ``uint8`` codes; ``(B, H, W, m)`` in memory.

        Raises:
            ValueError: the number of channels differs, there are no centroids yet, or
                the map is not finite.
        """
        batch, n_channels, height, width = feature_map.shape
        if n_channels != self.channels:
            raise ValueError(
                f"the feature map has {n_channels} channels, the quantizer was made "
                f"for {self.channels}"
            )
        if not self.fitted:
            raise ValueError(
                "the quantizer has no centroids yet: fit it on vectors of feature maps "
                "first"
            )
        n_groups, _, dim = self.centroids.shape
        centroids = self.centroids.to(feature_map.device)
        vectors = feature_map.permute(0, 2, 3, 1).reshape(-1, n_channels).float()
        _check_finite(vectors)
        # (B * H * W, m)
        codes = torch.empty(
            len(vectors), n_groups, dtype=torch.uint8, device=vectors.device
        )
        for group in range(n_groups):
            slices = vectors[:, group * dim : (group + 1) * dim]
            codes[:, group] = nearest_rows(slices, centroids[group])
        codes_bhwm = codes.view(batch, height, width, n_groups)
        return codes_bhwm.permute(0, 3, 1, 2)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Make feature maps of codes: each slice is the centroid of its code.

        Args:
            codes: ``(B, m, H, W)`` integers in ``[0, K)``, for each of ``m`` groups of
                channels the index of one of its ``K`` centroids.

        Returns:
            ``(B, C, H, W)`` float32, channels-last in memory.
        """
        batch, n_groups, height, width = codes.shape
        n_centroids = self.centroids.shape[1]
        # One table of the centroids of all groups, (m * K, d), group by group.
        table = self.centroids.flatten(0, 1).to(codes.device)
        groups = torch.arange(n_groups, dtype=torch.int32, device=codes.device)
        rows_bhwm = codes.permute(0, 2, 3, 1) + groups * n_centroids
        slices_bhwmd = functional.embedding(rows_bhwm, table)
        map_bhwc = slices_bhwmd.reshape(batch, height, width, self.channels)
        return map_bhwc.permute(0, 3, 1, 2)


def _check_finite(vectors: Tensor) -> None:
    """Raise ValueError unless all values of ``(N, C)`` vectors are finite."""
    # The extremes are NaN if any value is; a mask of all values would take a quarter of
    # their memory.
    if not all(bool(extreme.isfinite()) for extreme in vectors.aminmax()):
        raise ValueError(
            "the feature maps hold NaN or infinite values; look for them in the images "
            "or weights"
        )
