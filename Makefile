# Everything a developer runs. Each target sets up what it needs; Go is enough, and a C compiler for the race detector.
#
# `make help` prints the targets: the text behind `##` is their documentation.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
TOOL := $(GO) tool -modfile=scripts/tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Packages that are tested at the same time. The whole-program tests start
# servers and load them: more at once than this and a small machine times out
# for want of CPU, which says nothing about the code.
P ?= 2
TIMEOUT ?= 20m
# Longer or shorter runs: make fuzz FUZZTIME=5m, make bench BENCHTIME=3s COUNT=10.
FUZZTIME ?= 20s
BENCHTIME ?= 1s
COUNT ?= 1
DEMO_FLAGS ?=
# Of make chaos; seed 0 is a random one, which is printed.
DURATION ?= 10m
SEED ?= 0

GOTEST := $(GO) test -race -p $(P) -timeout $(TIMEOUT)

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/penstock, version from git
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/penstock ./cmd/penstock

.PHONY: demo
demo: build ## run everything in one process against a mock model; ends with a summary
	bin/penstock demo $(DEMO_FLAGS)

.PHONY: test
test: ## run all tests under the race detector
	$(GOTEST) ./...

.PHONY: test-invariants
test-invariants: ## check the invariants of the pure packages after every event
	$(GOTEST) -tags invariants ./readyset/... ./suspend/... ./broker/...

.PHONY: test-crash
test-crash: ## run what kills a process or loses power
	$(GOTEST) -count=1 -run 'Crash|Kill|Power|Outlive|C121' ./broker/... ./test/...

.PHONY: chaos
chaos: ## kill, stop, stall and damage a running penstock for DURATION; SEED=N repeats the faults of a run
	$(GO) test -count=1 -v -timeout 0 -run '^TestLong$$' ./test/chaos -chaos.duration=$(DURATION) -chaos.seed=$(SEED)

.PHONY: test-clients
test-clients: ## run the official RocketMQ client and the OpenAI SDK against Penstock
	$(GOTEST) -count=1 -run 'Official|OpenAI|Client' ./test/...

.PHONY: fuzz
fuzz: ## fuzz every decoder for FUZZTIME each
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

.PHONY: bench
bench: ## run the benchmarks; compare two outputs with scripts/benchstat.sh OLD NEW
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(COUNT) -p 1 ./...

.PHONY: lint
lint: ## run the linters of .golangci.yml
	$(TOOL) golangci-lint run

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w .

.PHONY: fmt-check
fmt-check: ## fail when a file is not formatted
	@out=$$($(TOOL) gofumpt -l .); [[ -z $$out ]] || { echo "not formatted, run make fmt:"; echo "$$out"; exit 1; }

.PHONY: generate-check
generate-check: ## fail when generated files or go.mod are not what the sources say
	@before=$$(git status --porcelain; git diff | git hash-object --stdin); \
	$(GO) generate ./...; \
	after=$$(git status --porcelain; git diff | git hash-object --stdin); \
	[[ $$before == "$$after" ]] || { echo "go generate changed files:"; git status --short; exit 1; }
	$(GO) mod tidy -diff

.PHONY: ci
ci: ## do what the build server does
	.ci/run
