# Every target is a script in scripts/, so that it can be read, and run where there is no make.
.PHONY: help setup build wheel test-wheel test-torch test test-nccl-matrix build-plugin sanitize-plugin sanitize-net test-plugin-matrix test-plugin-hostile test-net-deaths demo audit bench bench-place bench-net bench-nccl bench-server fmt fuzz fuzz-server miri soak-server test-otel test-server-kills bench-slurm

help: ## this list
	@awk -F': .*## ' '/^[a-z-]+: .*## /{ printf "make %-18s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing to build (C compiler, Rust); uses what is there
	@scripts/setup.sh

build: ## build the command: target/debug/linkwise
	@scripts/cargo.sh build --locked --workspace

test: ## every check and test; the last line counts passed, failed and skipped
	@scripts/test.sh

test-nccl-matrix: ## the NCCL bench on every minor release from 2.21 to 2.32, with a table
	@scripts/test-nccl-matrix.sh

build-plugin: ## the NCCL plugin for glibc 2.28 and later, into out/ (needs zig: python3 -m pip install ziglang)
	@scripts/build-plugin.sh

wheel: ## the Python wheel with the command, the NCCL plugins and the module, into out/ (zig and the package index for glibc 2.28)
	@scripts/build-wheel.sh

test-wheel: ## the wheel in a fresh environment: installed, the main job, removed (builds it if out/ has none)
	@scripts/test-wheel.sh

wheel-aarch64: ## the wheel for aarch64, cross-built (needs zig and rustup target add aarch64-unknown-linux-gnu)
	@scripts/build-wheel.sh out aarch64

test-cargo-install: ## cargo install with the NCCL plugins in the command, in a fresh home
	@scripts/test-cargo-install.sh

test-image: ## the container recipe, built and run without a network; needs root, buildah, mmdebstrap and a wheel in out/
	@scripts/test-image.sh

image: ## the container image of linkwise and of its controller for Kubernetes (needs podman or docker)
	@scripts/build-image.sh

packages: ## deb, rpm, tarball and SBOM from the wheel, into out/release
	@scripts/build-packages.sh

release: ## wheel, deb, rpm, tarball and SBOM, built twice and compared, each tested in clean systems; needs root, about an hour
	@scripts/release.sh

test-packages: ## the packages of out/release in clean systems of Debian 12 and Ubuntu 24.04; needs root and mmdebstrap
	@scripts/test-packages.sh

.PHONY: image packages release test-packages wheel-aarch64 test-cargo-install test-image

test-torch: ## linkwise.torch with real torchrun, Lightning, Transformers and Accelerate (fetches PyTorch, 6 GB, once)
	@scripts/must-test.sh scripts/test-torch.sh

sanitize-plugin: ## the NCCL plugin in a host in C under address and undefined-behaviour sanitizers (needs a nightly toolchain)
	@scripts/must-test.sh scripts/sanitize-plugin.sh

sanitize-net: ## aws-ofi-nccl's tests on the network plugin under address and thread sanitizers (LINKWISE_OFI_TESTS=CHECKOUT)
	@scripts/must-test.sh scripts/sanitize-net.sh

test-plugin-matrix: ## the NCCL plugin on every minor release from 2.21 to 2.32, and the long checks of the agreement
	@scripts/test-plugin-matrix.sh

test-plugin-hostile: ## cases that would make ranks of a job diverge, hang or crash, with the NCCL plugin on four releases
	@scripts/test-plugin-hostile.sh

test-net-deaths: ## 200 rails that die at random moments under real NCCL, about 6 minutes, needs root
	@scripts/test-net-deaths.sh

.PHONY: test-slurm-releases test-slurm-kills test-slurm-package slurm-package fuzz-slurm

test-slurm-releases: ## the test of Slurm on 24.11, in a small system of Debian; needs root and mmdebstrap
	@scripts/test-slurm-releases.sh

test-slurm-kills: ## linkwise, slurmctld and slurmd killed at random while 500 jobs run, with slurmdbd; about 15 minutes, goes on where it was cut off
	@scripts/slurm-kills.sh

slurm-package: ## linkwise-slurm_VERSION_ARCH.deb for the installed slurmctld, into out/
	@scripts/slurm-package.sh

test-slurm-package: ## install, upgrade, misfit and removal of that package in a clean system; needs root and mmdebstrap
	@scripts/test-slurm-package.sh

fuzz-slurm: ## fuzz what Slurm's plugin reads from its agent, ten minutes (needs clang)
	@scripts/fuzz-slurm.sh

.PHONY: build-kubernetes test-kubernetes bench-kubernetes

build-kubernetes: ## etcd and the control plane of Kubernetes 1.36 from the Go module proxy, for its tests; 8 minutes (needs Go 1.26)
	@scripts/build-kubernetes.sh

test-kubernetes: ## real operators, and 500 gangs on two releases of the control plane under kills and cuts, and a kill at every write; about 1 hour (needs Go 1.26)
	@scripts/test-kubernetes.sh

bench-kubernetes: ## a trace of gangs placed by linkwise and by the stock scheduler; about 5 minutes (needs Go 1.26)
	@scripts/bench-kubernetes.sh

demo: ## the main job end to end, with an HTML report in out/
	@scripts/demo.sh

audit: ## licences, known vulnerabilities and sources of every dependency
	@scripts/audit.sh

bench: ## micro-benchmarks
	@scripts/bench.sh

bench-place: ## placement evaluated in full, under 60 minutes; goes on where it was cut off
	@scripts/bench-place.sh

bench-nccl: ## mode adaptive in the real NCCL library over shaped rails, kernels played on the CPU; about 10 minutes, needs root
	@scripts/bench-nccl.sh

bench-slurm: ## a trace of 2,000 jobs through the real slurmctld, with and without linkwise; about 40 minutes, goes on where it was cut off
	@scripts/bench-slurm.sh

bench-net: ## the network plugin beside NCCL's sockets over shaped rails, a dead and a slow one; about 40 minutes, needs root
	@scripts/bench-net.sh

bench-server: ## decisions per second of a server beside the engine's own, at 1,024 and 10,240 GPUs; four minutes
	@scripts/bench-server.sh

soak-server: ## a server under a steady rate for MINUTES=30: its memory must be flat
	@scripts/soak-server.sh

fmt: ## format the code
	@scripts/cargo.sh fmt --all

fuzz: ## fuzz every reader, ten minutes each (needs a nightly toolchain)
	@scripts/fuzz.sh

test-otel: ## the spans of a server with the feature `otel`, decoded by a collector
	@scripts/cargo.sh test --locked --workspace --features linkwise/otel,server/otel-test --test otel

test-server-kills: ## servers killed 100 times and PostgreSQL 10 times under load, a full disk, cuts and clock jumps; about 5 minutes, goes on where it was cut off, needs root
	@scripts/server-kills.sh

fuzz-server: ## requests made from the server's OpenAPI document, ten minutes (needs python3 and the package index)
	@scripts/fuzz-server.sh

miri: ## the rings of `wire` under Miri (needs a nightly toolchain with miri)
	@scripts/must-test.sh scripts/miri.sh
