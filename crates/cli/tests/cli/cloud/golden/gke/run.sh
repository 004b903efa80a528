#!/usr/bin/env bash
# Creates the node pools, starts the job, shows its output, and deletes both when it has ended.
#
# v3-8 in us-central1-a: $8.00 per hour on demand in us-central1 (price of 2021-11-01), at most $64.00 in 8 h.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
#
# Requirements: gcloud, kubectl, a GKE cluster in the region us-central1 with the add-on GcsFuseCsiDriver and workload identity, JobSet in the
# cluster, a quota for these chips, and the image (Dockerfile). See docs/guide/cloud.md for the commands.
#
#   CLUSTER=NAME ./run.sh
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mine
SLICES=1
MAX_HOURS=8
BUCKET=my-runs

CLUSTER=${CLUSTER:?set the name of the cluster: CLUSTER=NAME ./run.sh}
POLL=${POLL:-20}   # seconds between status checks
PROJECT=$(gcloud config get-value project 2>/dev/null || true)
LOCATION=${LOCATION:-$(gcloud container clusters list --filter="name=$CLUSTER" --format='value(location)' | head -n 1)}

say() { printf '[run.sh] %s\n' "$*" >&2; }
fail() { say "$*" && exit 1; }

[[ -n $PROJECT && $PROJECT != "(unset)" ]] || fail "no project is set: gcloud config set project PROJECT"
[[ -n $LOCATION ]] || fail "cluster $CLUSTER not found: gcloud container clusters list"
gcloud container clusters get-credentials "$CLUSTER" --location="$LOCATION"
kubectl get crd jobsets.jobset.x-k8s.io >/dev/null || fail "JobSet is not installed in the cluster: see docs/guide/cloud.md"

pool_state() {
    gcloud container node-pools describe "$1" --cluster="$CLUSTER" --location="$LOCATION" --format='value(status)' 2>/dev/null || true
}

# Creates one node pool per slice from node-pool.json. Its machines are created with the pods and removed after them.
make_pool() {
    local url="https://container.googleapis.com/v1/projects/$PROJECT/locations/$LOCATION/clusters/$CLUSTER/nodePools"
    [[ -z $(pool_state "$1") ]] || return 0
    sed "s|\"$NAME-0\"|\"$1\"|" node-pool.json |
        curl -fsS -X POST -H @<(printf 'Authorization: Bearer %s' "$(gcloud auth print-access-token)") \
            -H 'Content-Type: application/json' --data @- "$url" >&2
    while :; do
        case $(pool_state "$1") in
        RUNNING) return 0 ;;
        ERROR | STOPPING) fail "cannot create the node pool $1: see gcloud container operations list --location=$LOCATION" ;;
        esac
        sleep "$POLL"
    done
}
for ((i = 0; i < SLICES; i++)); do make_pool "$NAME-$i"; done

# Allow the pods' service account to read and write the bucket.
kubectl create serviceaccount systole --namespace=default --dry-run=client -o yaml | kubectl apply -f -
NUMBER=$(gcloud projects describe "$PROJECT" --format='value(projectNumber)')
MEMBER="principal://iam.googleapis.com/projects/$NUMBER/locations/global/workloadIdentityPools/$PROJECT.svc.id.goog/subject/ns/default/sa/systole"
gcloud storage buckets add-iam-policy-binding "gs://$BUCKET" --role=roles/storage.objectUser --member="$MEMBER" >/dev/null

# Secret that the processes prove to each other if Systole's plugin connects them (libtpu does not need it).
head -c 32 /dev/urandom | base64 |
    kubectl create secret generic "$NAME" --namespace=default --from-file=secret=/dev/stdin --dry-run=client -o yaml |
    kubectl apply -f -

kubectl apply -f jobset.yaml
say "the job runs in the cluster independently of this shell, for at most $MAX_HOURS hours; run folder: gs://$BUCKET/$NAME"
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
        fail "the run failed or reached its time limit; ./run.sh resumes from gs://$BUCKET/$NAME"
        ;;
    esac
    # Distinguish a deleted job set from an API that does not answer.
    if [[ $(kubectl get jobset --namespace=default --ignore-not-found "$NAME" 2>&1) == "" ]]; then
        CLUSTER=$CLUSTER LOCATION=$LOCATION bash delete.sh
        fail "the job was deleted, as happens after $MAX_HOURS hours; ./run.sh resumes from gs://$BUCKET/$NAME"
    fi
done
