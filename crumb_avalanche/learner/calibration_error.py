"""How far the confidence of answers is from their accuracy."""

from torch import Tensor


def expected_calibration_error(
    probabilities: Tensor, correct: Tensor, n_bins: int = 15
) -> float:
    """Return the mean difference between confidence and accuracy.

    Over bins of equal width (Guo et al., ICML 2017). In each bin the difference of the
    means times its share of the images is the sum of differences by the number of all.

    Args:
        probabilities: ``(n,)``, the largest probability of each image.
        correct: ``(n,)`` bool, whether the answer is right.
        n_bins: number of bins; a probability on the border of two counts in the lower
            one.
    """
    probabilities = probabilities.double()
    bin_of_image = (probabilities * n_bins).ceil().long().clamp(1, n_bins) - 1
    difference = probabilities - correct.double()
    sum_of_bin = difference.new_zeros(n_bins).index_add_(0, bin_of_image, difference)
    return float(sum_of_bin.abs().sum() / len(difference))
