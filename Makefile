# The short door to the build: meson is the one truth about flags and sources.
BUILD ?= build
.PHONY: build run test test-long asan tsan bench format check-format install clean help
build:
	tools/bootstrap build $(BUILD)
