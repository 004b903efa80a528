CLUSTER=${CLUSTER:?set the name of the cluster: CLUSTER=NAME ./delete.sh}
LOCATION=${LOCATION:-$(gcloud container clusters list --filter="name=$CLUSTER" --format='value(location)' | head -n 1)}
kubectl delete -f jobset.yaml --ignore-not-found
kubectl delete secret "$NAME" --namespace=default --ignore-not-found || true
for ((i = 0; i < SLICES; i++)); do
    gcloud container node-pools delete "$NAME-$i" --cluster="$CLUSTER" --location="$LOCATION" --quiet || true
done
