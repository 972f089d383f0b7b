#!/usr/bin/env bash
# Builds deploy/kubernetes with kubectl kustomize and holds every object to the
# published schemas, strictly: unknown fields are errors.
#
#   tests/deploy/kubernetes_test.sh
#
# The schemas come from npm, made of Kubernetes' and the operators' own:
#
#   npm install --prefix DIR kubernetes-models @kubernetes-models/prometheus-operator yaml typescript@5
#   KUBERNETES_MODELS=DIR tests/deploy/kubernetes_test.sh
#
# Without them, or without kubectl, says so and is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

skip() {
  echo "skipped: $*" # ctest looks for this word
  exit 0
}

command -v kubectl >/dev/null || skip "no kubectl"

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
for folder in deploy/kubernetes/base deploy/kubernetes/overlays/*/; do
  name=$(basename "$folder")
  kubectl kustomize "$folder" >"$built/$name.yaml"
  echo "$name: $(grep -c '^kind: ' "$built/$name.yaml") objects"
done

[ -n "${KUBERNETES_MODELS:-}" ] ||
  skip "KUBERNETES_MODELS is not set: everything was built, nothing checked against schemas"
command -v node >/dev/null || skip "no node"
# Node looks for packages beside the script.
cp tests/deploy/kubernetes_check.mjs "$built/"
ln -s "$KUBERNETES_MODELS/node_modules" "$built/node_modules"
node "$built/kubernetes_check.mjs" "$built"/*.yaml
