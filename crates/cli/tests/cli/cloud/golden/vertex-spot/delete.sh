#!/usr/bin/env bash
# Cancels the job submitted by run.sh. It costs money until then, or until its time limit.
#
# v5litepod-8 in europe-west4-b: $4.08 per hour at spot prices in europe-west4 (price of 2026-11-22), at most $32.65 in 8 h; the fee of Vertex AI is not included.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

REGION=europe-west4

gcloud ai custom-jobs cancel "$(<job.name)" --region="$REGION"
