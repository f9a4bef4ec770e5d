"""SimpleCIL: class means of a frozen network as the weights of a cosine classifier.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models:
Generalizability and Adaptivity Are All You Need", IJCV 2025 (arXiv 2303.07338).
"""

from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register


@register(
    "simplecil",
    summary="class means of frozen features, as weights of a cosine classifier",
    source=(
        "Zhou et al., Revisiting Class-Incremental Learning with Pre-Trained Models, "
        "IJCV 2025"
    ),
    stores="a mean for each class",
)
class SimpleCIL(ClassMeans):
    """Cosine classifier whose weights are class means (SimpleCIL).

    Its two steps, numbered here::

        (1) p_c = mean of f(x) over the images x of class c
        (2) argmax_c <p_c / |p_c|, f(x) / |f(x)|>

    ``f`` is the input of the head of the frozen network. That is ``ncm``, with the same
    answers bit for bit; it has the name by which the literature on pretrained networks
    compares with it. APER (ADAM) trains adapters on the first experience before step 1
    and concatenates both networks' features, which takes gradients and is not here.
    """
