# balefire: see CONTRIBUTING.md for what each target is for.
SHELL      := /bin/bash
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS    := -funcalign 16 -s -w -X main.linked=$(VERSION)
TOOL       := go tool -modfile=tools/go.mod
LARGEST    := 42000000
OTHER_OS   := darwin/arm64 windows/amd64 linux/arm64

.PHONY: build check lint lint-proto systems proto test race gate soak e2e sim bench bench-quick bench-net bench-net-30 bench-queues image mesh mesh-up mesh-down mesh-partition mesh-loss mesh-heal mesh-restart clean

build: ## the binary, static and stripped, in dist/: at most 42 MB
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o dist/balefire-node ./cmd/balefire-node
	@size=$$(wc -c < dist/balefire-node); test $$size -le $(LARGEST) || { echo "dist/balefire-node has $$size bytes, the limit is $(LARGEST): what was newly linked? (go list -deps ./cmd/balefire-node)"; exit 1; }

check: lint ## all checks that need no running node: format, vet, lint, layers
	go test ./internal/arch

lint: ## format, tidy, vet, linters
	@test -z "$$(git ls-files '*.go' | grep -v '\.pb\.go$$' | xargs gofmt -l)" || { echo 'not gofmt-ed:'; git ls-files '*.go' | xargs gofmt -l; exit 1; }
	go mod tidy -diff
	cd bench && go vet ./...
	$(TOOL) golangci-lint run --allow-parallel-runners ./...

lint-proto: ## protobuf style, and breaking changes since proto/frozen.binpb
	$(TOOL) buf lint
	$(TOOL) buf breaking --against proto/frozen.binpb

systems: ## vet for the other supported systems
	@for t in $(OTHER_OS); do echo "build and vet $$t"; \
	  GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 go vet ./... || exit 1; done

proto: ## generate code after a change of *.proto
	$(TOOL) buf format -w proto
	$(TOOL) buf generate

test: ## quick tests, need only Go
	go test ./...

race: ## with one processor each: on several, timers of testing/synctest corrupt the race detector (go.dev/issue/78156)
	CGO_ENABLED=1 GOMAXPROCS=1 go test -race -short -p $$(nproc) -timeout 120m ./...

gate: ## required for every change: go test, lint, simulator, short forms of all tests with real processes; at most 12 minutes on 2 cores
	go run ./internal/gate

soak: ## the long forms of all tests, -race and the lab: those that have not passed since their packages changed, one line each in dist/soak.txt
	go run ./internal/gate soak

e2e: ## only the tests with real processes, in their short form; needs root, strace, iproute2 and docker
	go run ./internal/gate -only 'kill,leases,power cut,full disk,behind NAT,containers'

sim: ## 1 000 000 seeds of ownership, and ten times the seeds for each omitted rule; 200 virtual hours of ten whole nodes
	BALEFIRE_SEEDS=1000000 BALEFIRE_LONG=1 go test ./ownership -count=1 -timeout 12h -run '^(TestSimulator|TestEveryRuleIsMissed)$$' -v
	BALEFIRE_QUEUE_HOURS=200 go test ./node -count=1 -timeout 24h -run '^TestQueueHours$$' -v

bench: ## the figures of docs/benchmarks.md, compared in one run; fails with the names of the missed targets
	cd bench && go run . -out ../docs/benchmarks.md

bench-quick: ## accepted, whole, queue and mail figures compared with NATS in one run: at most four minutes on 2 idle cores
	cd bench && go run . -quick -wait 10s -only accept,ended,rival,queue,mail,mailoffered

bench-net: ## what a mesh of 15 real nodes costs at rest, with a member behind 64 kbit/s, and what it makes of a pause, a death, a join and a link that becomes narrow: 40 minutes on 2 idle cores; needs root and iproute2
	BALEFIRE_LONG=1 go test -tags e2e -count=1 -timeout 120m -v -run '^TestBench' ./e2e

bench-net-30: ## the same of a mesh of 30 at rest, without the link that becomes narrow
	BALEFIRE_LONG=1 BALEFIRE_REST=30 go test -tags e2e -count=1 -timeout 120m -v -run '^TestBenchMeshAtRest$$' ./e2e

bench-queues: ## the figures of docs/ownership.md, about ten minutes on 2 idle cores
	cd bench && go run . -only queue,takeover,handoff
	go test ./ownership -run '^$$' -bench 'Renewals|Backlog' -benchtime 20x
	go test ./ownership ./node -count=1 -v -run 'CountMessagesAndSyncs|QueueMessageAndSyncCost'

image: build ## a container image FROM scratch around the built binary
	mkdir -p dist/data && touch dist/data/.keep
	docker build --target prebuilt --build-arg VERSION=$(VERSION) -t balefire-node:$(VERSION) .

mesh: build ## the images of docker-compose.yml
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o dist/netlab ./internal/lab/netlab
	mkdir -p dist/data && touch dist/data/.keep

mesh-up: mesh ## seven nodes in containers, two networks behind NAT: docs/lab.md
	scripts/mesh up

mesh-down: ## remove the mesh with all its data
	scripts/mesh down

mesh-partition: ## isolate one private network: SIDE=a
	scripts/mesh partition $(or $(SIDE),a)

mesh-loss: ## drop a fraction of the packets at the routers: LOSS=0.2
	scripts/mesh loss $(or $(LOSS),0.2)

mesh-heal: ## end partitions and loss
	scripts/mesh heal

mesh-restart: ## restart a node or a router: NODE=relay1
	scripts/mesh restart $(or $(NODE),relay1)

clean:
	rm -rf bin && git clean -fdxq dist
