#!/usr/bin/env bash
# Build sdist and wheel from the committed files, check them, and use the installed package outside the checkout.
#   tests/installed.sh [whole] [light] [demo]
# whole: the wheel with all requirements; light: without Avalanche, by requirements-predict.txt; demo: crumb demo too.
# Needs python -m build and twine. Environments are made with PYTHON (default python3) and removed afterwards; PIP_ARGS
# are arguments of every pip install.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/source"
git -C "$root" archive HEAD | tar -x -C "$place/source"
cd "$place"
python -m build ${BUILD_ARGS:-} --outdir dist source >build.log 2>&1 || { tail -20 build.log >&2; exit 1; }
python -m twine check --strict dist/*
cat >photos.py <<'PHOTOS'
import numpy, PIL.Image, pathlib
for name, level in (("dark", 40), ("light", 200)):
    folder = pathlib.Path("photos", name)
    folder.mkdir(parents=True)
    for number in range(4):
        noise = numpy.random.default_rng(number).integers(-30, 30, (64, 64, 3))
        PIL.Image.fromarray((level + noise).astype("uint8")).save(folder / f"{number}.png")
PHOTOS

use() { # ENVIRONMENT: the installed package, from a folder without a checkout
    rm -rf photos mine.safetensors
    "$1/bin/python" photos.py
    "$1/bin/python" -c 'import crumb_avalanche, sys; assert crumb_avalanche.__file__.startswith(sys.prefix)'
    "$1/bin/crumb" teach mine.safetensors photos --weights none --image-size 64 --progress false
    "$1/bin/crumb" predict mine.safetensors photos | tee answers.txt
    grep -q "8 of 8 right" answers.txt
    "$1/bin/crumb" learner show mine.safetensors >/dev/null
}

for what in "${@:-whole}"; do
    echo "== $what"
    [ "$what" = demo ] || "${PYTHON:-python3}" -m venv "$place/$what"
    case $what in
    whole)
        "$place/whole/bin/pip" install -q ${PIP_ARGS:-} dist/*.whl
        use "$place/whole"
        "$place/whole/bin/crumb" run --benchmark toy_shapes_short --backbone small_cnn --weights none --image-size 32 \
            --preset paper --first-epochs 1 --progress false --output run
        ;;
    light)
        "$place/light/bin/pip" install -q ${PIP_ARGS:-} --no-deps dist/*.whl
        "$place/light/bin/pip" install -q ${PIP_ARGS:-} -r source/requirements-predict.txt
        use "$place/light"
        ! "$place/light/bin/python" -c 'import avalanche' 2>/dev/null || { echo "Avalanche is installed" >&2; exit 1; }
        ;;
    demo) "$place/whole/bin/crumb" demo --output demo --progress false ;;
    esac
done
