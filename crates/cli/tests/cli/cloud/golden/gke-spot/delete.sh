#!/usr/bin/env bash
# Deletes the job and its node pools, which cost money until then.
#
# 2*v5litepod-16 (8 machines of 4 chips) in us-central1-a: $9.53 per hour at spot prices in us-central1 (price of 2026-11-22), at most $76.21 in 8 h.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mlp
SLICES=2

CLUSTER=${CLUSTER:?set the name of the cluster: CLUSTER=NAME ./delete.sh}
LOCATION=${LOCATION:-$(gcloud container clusters list --filter="name=$CLUSTER" --format='value(location)' | head -n 1)}
kubectl delete -f jobset.yaml --ignore-not-found
kubectl delete secret "$NAME" --namespace=default --ignore-not-found || true
for ((i = 0; i < SLICES; i++)); do
    gcloud container node-pools delete "$NAME-$i" --cluster="$CLUSTER" --location="$LOCATION" --quiet || true
done
