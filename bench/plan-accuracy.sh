#!/bin/sh
# Compares the analytic model with libtpu's compiler and writes docs/results/plan-accuracy.md. Needs libtpu (a Python with it on
# the path, or TPU_LIBRARY_PATH); takes about twenty minutes on an idle machine. What was compiled stays in
# target/plan-accuracy: a run that is stopped goes on from there.
set -eu
cd "$(dirname "$0")/.."
steps=$(mktemp -d)
trap 'rm -r "$steps"' EXIT
for step in mlp-64 mlp-1024 fashion-mnist-64 fashion-mnist-1024 cifar-cnn-64; do
    cargo run --quiet -- show "${step%-*}" --stage stablehlo --batch-size "${step##*-}" >"$steps/$step.mlir"
done
cargo run -p systole-plan --example accuracy -- docs/results/plan-accuracy.md target/plan-accuracy "$steps"/*.mlir
