#!/usr/bin/env bash
# Makes the node pools, starts the job, shows what it says, and deletes both when it has ended.
#
# 2*v5litepod-16 (8 machines of 4 chips) in us-central1-a: $9.53 an hour at spot prices in us-central1 (price of 2026-11-22), at most $76.21 in 8 h.
# Written by `systole cloud`. docs/guide/cloud.md says what of it was run, and what only checked.
#
# Needs gcloud, kubectl, a cluster of GKE in the region us-central1 with the add-on GcsFuseCsiDriver and workload identity, JobSet in it,
# a quota for these chips, and the image (Dockerfile): docs/guide/cloud.md has the commands.
#
#   CLUSTER=NAME ./run.sh
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mlp
SLICES=2
MAX_HOURS=8
BUCKET=my-runs

CLUSTER=${CLUSTER:?the name of the cluster: CLUSTER=NAME ./run.sh}
POLL=${POLL:-20}   # seconds between two looks
PROJECT=$(gcloud config get-value project 2>/dev/null || true)
LOCATION=${LOCATION:-$(gcloud container clusters list --filter="name=$CLUSTER" --format='value(location)' | head -n 1)}

say() { printf '[run.sh] %s\n' "$*" >&2; }
fail() { say "$*" && exit 1; }

[[ -n $PROJECT && $PROJECT != "(unset)" ]] || fail "no project is chosen: gcloud config set project PROJECT"
[[ -n $LOCATION ]] || fail "there is no cluster $CLUSTER: gcloud container clusters list"
gcloud container clusters get-credentials "$CLUSTER" --location="$LOCATION"
kubectl get crd jobsets.jobset.x-k8s.io >/dev/null || fail "the cluster has no JobSet: docs/guide/cloud.md has the command"

pool_state() {
    gcloud container node-pools describe "$1" --cluster="$CLUSTER" --location="$LOCATION" --format='value(status)' 2>/dev/null || true
}

# One node pool for each slice, as node-pool.json asks for it. Its machines come with the pods and go after them.
make_pool() {
    local url="https://container.googleapis.com/v1/projects/$PROJECT/locations/$LOCATION/clusters/$CLUSTER/nodePools"
    [[ -z $(pool_state "$1") ]] || return 0
    sed "s|\"$NAME-0\"|\"$1\"|" node-pool.json |
        curl -fsS -X POST -H @<(printf 'Authorization: Bearer %s' "$(gcloud auth print-access-token)") \
            -H 'Content-Type: application/json' --data @- "$url" >&2
    while :; do
        case $(pool_state "$1") in
        RUNNING) return 0 ;;
        ERROR | STOPPING) fail "the node pool $1 was not made: gcloud container operations list --location=$LOCATION says why" ;;
        esac
        sleep "$POLL"
    done
}
for ((i = 0; i < SLICES; i++)); do make_pool "$NAME-$i"; done

# The pods' account may read and write the bucket.
kubectl create serviceaccount systole --namespace=default --dry-run=client -o yaml | kubectl apply -f -
NUMBER=$(gcloud projects describe "$PROJECT" --format='value(projectNumber)')
MEMBER="principal://iam.googleapis.com/projects/$NUMBER/locations/global/workloadIdentityPools/$PROJECT.svc.id.goog/subject/ns/default/sa/systole"
gcloud storage buckets add-iam-policy-binding "gs://$BUCKET" --role=roles/storage.objectUser --member="$MEMBER" >/dev/null

kubectl apply -f jobset.yaml
say "the job runs in the cluster, also without this shell; its guard ends it after $MAX_HOURS hours. The run: gs://$BUCKET/$NAME"
jobset() { kubectl get jobset "$NAME" --namespace=default -o "jsonpath=$1" 2>/dev/null; }
FIRST="jobset.sigs.k8s.io/jobset-name=$NAME,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
while :; do
    sleep "$POLL"
    kubectl logs --namespace=default -l "$FIRST" -c train --since="${POLL}s" --tail=-1 2>/dev/null || true
    case $(jobset '{.metadata.name}/{.status.terminalState}' || true) in
    "$NAME"/Completed)
        CLUSTER=$CLUSTER LOCATION=$LOCATION bash delete.sh
        say "done: gcloud storage cp -r gs://$BUCKET/$NAME ."
        exit 0
        ;;
    "$NAME"/Failed)
        kubectl logs --namespace=default -l "$FIRST" -c train --tail=40 || true
        CLUSTER=$CLUSTER LOCATION=$LOCATION bash delete.sh
        fail "the run ended with an error, or its time was over; ./run.sh goes on from gs://$BUCKET/$NAME"
        ;;
    esac
    # Nothing at all may also mean that nobody answers.
    if [[ $(kubectl get jobset --namespace=default --ignore-not-found "$NAME" 2>&1) == "" ]]; then
        CLUSTER=$CLUSTER LOCATION=$LOCATION bash delete.sh
        fail "the job was deleted, as its guard does after $MAX_HOURS hours; ./run.sh goes on from gs://$BUCKET/$NAME"
    fi
done
