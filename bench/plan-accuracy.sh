#!/bin/sh
# Compares the analytic model with libtpu's compiler and writes docs/plan-accuracy.md. Needs libtpu (a Python with it on
# the path, or TPU_LIBRARY_PATH); takes about twenty minutes on an idle machine. What was compiled stays in
# target/plan-accuracy: a run that is stopped goes on from there.
set -eu
cd "$(dirname "$0")/.."
steps=$(mktemp -d)
trap 'rm -r "$steps"' EXIT
for preset in fashion-mnist mlp cifar-cnn; do
    for batch in 64 1024; do
        cargo run --quiet -- show "$preset" --stage stablehlo --batch-size "$batch" >"$steps/$preset-$batch.mlir"
    done
done
cargo run -p systole-plan --example accuracy -- docs/plan-accuracy.md target/plan-accuracy "$steps"/*.mlir
