#!/usr/bin/env bash
# Deletes the machines requested by run.sh, which cost money until then.
#
# v5litepod-8 in us-central1-a: $9.60 per hour on demand in us-central1 (price of 2026-11-22), at most $19.20 in 2 h.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mine
ZONE=us-central1-a

gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
