#!/usr/bin/env bash
# The Go package: gofmt, go vet for this system, Windows and macOS, its tests and examples, without cgo, with the library of
# build/release. Skipped, with a sentence, where there is no Go of 1.21 or later, or its one dependency is not to be had.
# scripts/test_windows.sh runs the tests with millrace.dll. With --can it tries nothing, and succeeds where it could.
set -euo pipefail
cd "$(dirname "$0")/../go"
[ "${1:-}" = --can ] && can=1 || can=0
skip() {
  echo "test_go: skipped: $1"
  exit $((can))
}
export CGO_ENABLED=0
version=$(go env GOVERSION 2>/dev/null) || skip "there is no Go"
printf '%s\n' go1.21 "$version" | sort -CV || skip "$version is older than 1.21"
go mod download >/dev/null 2>&1 || skip "github.com/ebitengine/purego cannot be fetched"
[ "$can" = 0 ] || exit 0
export MILLRACE_LIBRARY=$PWD/../build/release/libmillrace.so
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "test_go: gofmt -w $unformatted" >&2; exit 1; }
go vet ./...
GOOS=windows go vet ./...
GOOS=darwin GOARCH=arm64 go vet ./...
go test -count=1 ./...
go run ./examples/tensors ../models/demo-moe-q4_k_m.gguf | grep 'output_norm.weight'
echo 'What is the capital of France?' | go run ./examples/chat ../models/demo-moe-q4_k_m.gguf | grep 'Paris'
echo "test_go: passed with $version"
