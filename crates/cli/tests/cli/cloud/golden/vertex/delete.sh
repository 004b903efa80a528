#!/usr/bin/env bash
# Cancels the job submitted by run.sh. It costs money until then, or until its time limit.
#
# v6e-16 (4 machines of 4 chips) in us-central1-b: $43.20 per hour on demand in us-central1 (price of 2026-11-22), at most $346 in 8 h; the fee of Vertex AI is not included.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

REGION=us-central1

gcloud ai custom-jobs cancel "$(<job.name)" --region="$REGION"
