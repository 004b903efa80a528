#!/usr/bin/env bash
# Deletes the job and its node pools, which cost money until then.
#
# v3-8 in us-central1-a: $8.00 per hour on demand in us-central1 (price of 2021-11-01), at most $64.00 in 8 h.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mine
SLICES=1

CLUSTER=${CLUSTER:?set the name of the cluster: CLUSTER=NAME ./delete.sh}
LOCATION=${LOCATION:-$(gcloud container clusters list --filter="name=$CLUSTER" --format='value(location)' | head -n 1)}
kubectl delete -f jobset.yaml --ignore-not-found
kubectl delete secret "$NAME" --namespace=default --ignore-not-found || true
for ((i = 0; i < SLICES; i++)); do
    gcloud container node-pools delete "$NAME-$i" --cluster="$CLUSTER" --location="$LOCATION" --quiet || true
done
