# The short door to the build: meson is the one truth about flags and sources, tools/ about set-up and checks.
BUILD ?= build
MODEL ?=
PORT ?= 8080
# yes or no: with or without the CUDA engine; else as the machine has a GPU.
CUDA =
export CUDA

.PHONY: help build run test test-long e2e-clients asan tsan fuzz bench format check-format install clean

help:
	@echo 'make run [MODEL=path.gguf] [PORT=8080]   install what is missing, build, bring a small model, serve it'
	@echo 'make build                               build only'
	@echo '     CUDA=yes | CUDA=no                  with either: with or without the CUDA engine (default: where a GPU is)'
	@echo 'make test                                all checks, about a quarter of an hour on 2 cores'
	@echo 'make test-long                           the longer tests'
	@echo 'make e2e-clients                         Claude Code, Codex, qwen-code and others against berth, offline'
	@echo 'make asan | tsan                         the checks of one sanitizer'
	@echo 'make fuzz                                the fuzzers, five minutes (tools/fuzz SECONDS for more or less)'
	@echo 'make bench [MODEL=path.gguf]             measure prompt reading and decoding'
	@echo 'make format | check-format               clang-format'
	@echo 'make install                             meson install (DESTDIR works)'
	@echo 'make clean                               remove the build folders; models/, .venv and .clients stay'

build:
	@tools/bootstrap packages
	@tools/bootstrap build $(BUILD)

run:
	@exec tools/bootstrap run "$(MODEL)" "$(PORT)"

test:
	@tools/run-tests

test-long:
	@tools/run-tests long

e2e-clients:
	@tools/e2e-clients

asan tsan:
	@tools/run-tests $@

fuzz:
	@tools/bootstrap packages test
	@tools/fuzz

bench:
	@tools/bootstrap packages
	@tools/bootstrap build $(BUILD) berth
	@[ -n "$(MODEL)" ] || tools/bootstrap model
	@$(BUILD)/berth bench $(if $(MODEL),--set model.path=$(MODEL))

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

check-format:
	@tools/run-tests format

install: build
	meson install -C $(BUILD) --no-rebuild

clean:
	rm -rf build build-asan build-tsan build-clang build-fuzz
