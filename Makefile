# `make` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak check bench fmt
SHELL := /bin/bash

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1	/p' $(MAKEFILE_LIST)

setup: ## install what is missing (Debian packages, test runner)
	@scripts/setup

demo: setup ## three clusters, their etcds and a gateway on this machine
	cargo run --locked --release -- demo $(ARGS)

test: setup ## all tests
	scripts/test $(ARGS)

soak: setup ## random faults at five peers, for half an hour or MESHGATE_SOAK
	MESHGATE_SOAK=$${MESHGATE_SOAK:-30m} cargo nextest run --locked --profile soak --no-capture -E 'test(field::soak)'

check: ## everything that CI does: format, lints, docs, dependencies, tests
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo check --locked --lib --no-default-features --features client
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items
	scripts/deny
	scripts/test

bench: setup ## what BENCHMARKS.md quotes
	cargo bench --locked --bench figures -- $(ARGS)

fmt: ## format
	cargo fmt --all
