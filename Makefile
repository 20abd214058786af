# balefire: see CONTRIBUTING.md for what each target is for.
SHELL      := /bin/bash
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS    := -s -w -X main.version=$(VERSION)
TOOL       := go tool -modfile=tools/go.mod
OTHER_OS   := darwin/arm64 windows/amd64 linux/arm64

.PHONY: build check lint proto test race e2e bench fuzz image clean docs

build: ## the binary, static and stripped, in dist/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o dist/balefire-node ./cmd/balefire-node

check: lint ## everything that needs no running node: format, vet, lint, protocol, other systems, race
	$(MAKE) race

lint:
	@test -z "$$(git ls-files '*.go' | grep -v '\.pb\.go$$' | xargs gofmt -l)" || { echo 'not gofmt-ed:'; git ls-files '*.go' | xargs gofmt -l; exit 1; }
	go mod tidy -diff
	go vet ./...
	$(TOOL) golangci-lint run ./...
	$(TOOL) buf lint
	$(TOOL) buf breaking --against proto/frozen.binpb
	@for t in $(OTHER_OS); do echo "build and vet $$t"; \
	  GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 go vet ./... || exit 1; done

proto: ## generated code and docs after a change of *.proto
	$(TOOL) buf format -w proto
	$(TOOL) buf generate

test: ## quick, needs Go alone
	go test ./...

race:
	go test -race -short ./...

e2e: ## real processes: crashes, full disks, strace; needs root, strace
	go test -tags e2e -count=1 -timeout 30m ./e2e/...

bench: ## the figures of docs/benchmarks.md, compared in one run
	cd bench && go run . -out ../docs/benchmarks.md

image: build ## a container image FROM scratch around the built binary
	mkdir -p dist/data && touch dist/data/.keep
	docker build --target prebuilt -t balefire-node:$(VERSION) .

clean:
	rm -rf dist bin
