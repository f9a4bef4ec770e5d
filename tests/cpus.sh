#!/usr/bin/env bash
# Run tests as on other CPUs: without vector instructions, with AVX2 alone, and with layers rounded otherwise.
#   tests/cpus.sh [PYTEST OPTION OR PATH]...
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD/tests/helpers${PYTHONPATH:+:$PYTHONPATH}"
failed=()
run() { # NAME=VALUE [PYTEST OPTION]...
    echo "== ${1:-this CPU}"
    env ${1:+"$1"} python -m pytest "${@:2}" || failed+=("${1:-this CPU}")
}
run "" "$@"
run ATEN_CPU_CAPABILITY=default "$@"
run ATEN_CPU_CAPABILITY=avx2 "$@"
run ONEDNN_MAX_CPU_ISA=AVX2 "$@"
for seed in 1 2; do
    run CRUMB_TEST_ROUNDING=$seed -p other_rounding "$@"
done
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
