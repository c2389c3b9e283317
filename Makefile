# SPDX-License-Identifier: Apache-2.0
# Needs Python 3.11, make and a C compiler; everything else is installed into .venv*. `make help` lists the targets.

PYTHON ?= python3.11
# Tests compile on one thread each, so one worker per core is what saves time. `make test WORKERS=0` runs in one process.
WORKERS ?= auto
# More for pytest: make test-full ARGS="-k geometry --hypothesis-seed=42"
ARGS ?=

BENCH_IR ?= relax
BENCH_KINDS ?= conv_transpose conv conv_weight_grad
BENCH_CASES ?= scripts/cases/bench.json
BENCH_ARGS ?= --rivals torch,stock --threads 2

# TVM releases under test and the apache-tvm-ffi that works with each:
# 0.1.15 crashes in Schedule.tensorize (0.26, 0.27); 0.25 imports with 0.1.12 only.
TVM_027 := "apache-tvm==0.27.0.post1" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"
TVM_026 := "apache-tvm==0.26.0" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"
TVM_025 := "apache-tvm==0.25.0.post1" "apache-tvm-ffi==0.1.12"
# The last TVM with Relay that can be installed: a whole 0.17 inside this wheel. Its own needs are heavy and not ours.
# They are installed first: pip reports what the wheel lacks as soon as anything is installed beside it.
TVM_RELAY := "bitblas==0.1.0.post1"
RELAY_NEEDS := attrs cloudpickle decorator ml_dtypes psutil scipy tornado typing_extensions
# The last TensorFlow with the Keras 2 that this TVM imports, what it was built with, and what `import tensorflow` needs;
# TensorBoard and the rest of its list are not imported.
TENSORFLOW := "tensorflow-cpu==2.15.1" "keras==2.15.0" "numpy==1.26.4" "protobuf==4.25.9" "ml-dtypes==0.3.2"
TENSORFLOW_NEEDS := absl-py astunparse flatbuffers gast google-pasta "h5py<3.17" opt-einsum six termcolor "wrapt<1.15" requests urllib3 certifi idna charset-normalizer
# The oracle, pinned: what the tolerances were measured against.
TORCH := "torch==2.13.0"

# Baselines of scripts/bench.py that the tests do not need.
OPENVINO := "openvino>=2026.4,<2026.5"

# Whose models scripts/real_models.py compiles. Another release may write another graph; torchvision's belongs to torch's.
MODELS := transformers==5.24.0 diffusers==0.42.1 segmentation-models-pytorch==0.6.0 timm==1.0.31 \
  torchvision==0.28.0 monai==1.6.0 einops==0.8.2

# Models that bench-busy measures: all of them would take hours.
BUSY_MODELS ?= Linknet SpeechT5HifiGan

# Where benchmarks write: `make measured` writes the figures of the documents.
OUT ?= out

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := -m pytest -n $(WORKERS) --maxprocesses 8 $(ARGS)
# $(call benchmark,PYTHON,SCRIPT,NAME OF THE RESULT)
benchmark = mkdir -p $(OUT) && $(1) scripts/$(2).py --json $(OUT)/$(3).json --plot $(OUT)/$(3).png $(ARGS)

# Another TVM on the caller's path must not get in front of the pinned ones.
unexport PYTHONPATH
# The shell's variable `layers` is CASES-KIND.
bench_layers = .venv-rivals/bin/python scripts/bench.py --cases scripts/cases/$${layers%-*}.json --kind $${layers\#*-} --time-budget 0.5

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo docs env env-aarch64 env-all env-models env-relay env-relay-tf env-rivals models test test-models test-fast test-full test-relay test-relay-tf test-tvm025 test-tvm026 lint types format fuzz bench bench-torch-compile bench-first-call bench-training trained-models compiled-models bench-int8 bench-layers bench-models bench-relay bench-busy bench-attention measured dist try-python growth clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */  \1\t/' | expand -t 16

demo: env env-relay  ## install, check real decoders, train an autoencoder, write a report with plots
	$(PY) examples/demo.py --relay .venv-relay/bin/python $(ARGS)

docs: .venv/.docs  ## build the documents as a site, out/docs/index.html; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

env: .venv/.ready  ## make .venv: this package, editable, with all that the tests and the demo need

env-all: env .venv-tvm026/.ready .venv-tvm025/.ready env-relay env-relay-tf env-models  ## every environment that `make test` uses

env-relay: .venv-relay/.ready  ## make .venv-relay: TVM 0.17 with Relay, all else shared with .venv

env-relay-tf: .venv-relay-tf/.ready  ## make .venv-relay-tf: TensorFlow and Keras, on top of .venv-relay, all else shared with .venv-relay

env-models: .venv-models/.ready  ## make .venv-models: transformers, diffusers and others, all else shared with .venv

env-rivals: .venv-rivals/.ready  ## make .venv-rivals: OpenVINO, for scripts/bench.py --rivals, all else shared with .venv

models: env-models  ## export, import, compile and compare models of other packages, write out/models.json
	mkdir -p out
	.venv-models/bin/python scripts/real_models.py --portable --json out/models.json $(ARGS)

bench-models: env-models env-rivals  ## time whole models in realistic sizes, compared with four frameworks, write out/bench_models.json and .png
	$(call benchmark,.venv-models/bin/python,bench_models,bench_models)

bench-training: env  ## time training steps against PyTorch eager and torch.compile, write out/bench_training.json and .png
	$(call benchmark,$(PY),bench_torch_compile,bench_training) --modes step

bench-busy: env-models env-rivals  ## time whole models while other processes run, compared with four frameworks, write out/bench_busy.json and .png
	$(call benchmark,.venv-models/bin/python,bench_models,bench_busy) --busy --only $(BUSY_MODELS)

bench-relay: env env-relay  ## time decoders by Relay, stock Relay and Relax, write out/bench_relay.json and .png
	$(call benchmark,$(PY),bench_relay,bench_relay)

bench-torch-compile: env  ## time torch.compile's backend tvm_conv against PyTorch eager and inductor, write out/bench_torch_compile.json and .png
	$(call benchmark,$(PY),bench_torch_compile,bench_torch_compile) $(STEP)

bench-first-call: env-rivals  ## time first calls with known and symbolic sizes against inductor, ONNX Runtime and OpenVINO, write out/bench_first_call.json and .png
	$(call benchmark,.venv-rivals/bin/python,bench_first_call,bench_first_call)

bench-attention: env  ## time attention by torch.compile against PyTorch eager and inductor, write out/bench_attention.json and .png
	$(call benchmark,$(PY),bench_torch_compile,bench_attention) --models attention

trained-models: env-models  ## train models of other packages by PyTorch and by ours, compare losses and weights, write out/trained.json
	mkdir -p out
	.venv-models/bin/python scripts/trained_models.py --json out/trained.json $(ARGS)

compiled-models: env-models  ## run and train models of other packages by torch.compile, compare with PyTorch, write out/compiled.json
	mkdir -p out
	.venv-models/bin/python scripts/compiled_models.py --json out/compiled.json $(ARGS)

bench-int8: env-models env-rivals  ## time quantized layers and whole models against ONNX Runtime, OpenVINO, inductor and our float32, write out/bench_int8.json, bench_int8_models.json and .png
	$(call benchmark,.venv-models/bin/python,bench_int8_models,bench_int8_models)
	$(call benchmark,.venv-rivals/bin/python,bench_int8,bench_int8) --cases scripts/cases/bench.json scripts/cases/bench_conv.json

# Two programs that Debian has: qemu-user-static and g++-aarch64-linux-gnu.
ARM := $(and $(shell command -v qemu-aarch64-static),$(shell command -v aarch64-linux-gnu-g++))

env-aarch64: $(if $(ARM),.venv-aarch64/.ready)  ## TVM's runtime for Arm, to run a whole model by qemu; skipped if qemu or g++ for Arm is missing
	@$(if $(ARM),,echo "no runtime for Arm: apt-get install qemu-user-static g++-aarch64-linux-gnu")

# The long run comes last, so that its summary is the last thing printed.
test: lint types docs env-aarch64 test-tvm025 test-tvm026 test-relay test-relay-tf test-models test-full  ## lint, types, docs, smoke tests on TVM 0.25 and 0.26, all on Relay and 0.27

FAST := tests/core tests/cpu/test_plans.py tests/cpu/test_cpu_registry.py tests/project/test_layering.py tests/project/test_source_rules.py

test-fast: env  ## tests that need no kernel, and the smoke tests; less than three minutes
	EXPECT_TVM=0.27 $(PY) $(PYTEST) $(FAST)
	EXPECT_TVM=0.27 $(PY) $(PYTEST) -m smoke

test-full: env  ## all tests on TVM 0.27
	EXPECT_TVM=0.27 $(PY) $(PYTEST)

test-relay: env-relay  ## all tests of the Relay adapter, on TVM 0.17
	.venv-relay/bin/python $(PYTEST) tests/relay

# Of the padding rules, what TensorFlow and Keras compute here.
COMPUTED := tests/core/test_padding.py::test_a_call_means_what_its_framework_computes_here

test-relay-tf: env-relay-tf  ## Relay's importers of TensorFlow and Keras, and paddings, against both
	.venv-relay-tf/bin/python $(PYTEST) tests/relay_tf \
	  $(foreach framework,tensorflow keras,$(foreach op,conv conv_transpose,"$(COMPUTED)[$(framework)-$(op)]"))

test-models: env-models  ## a few models of transformers, diffusers and others
	.venv-models/bin/python $(PYTEST) -m "not slow" tests/zoo

test-tvm026: .venv-tvm026/.ready  ## smoke tests on TVM 0.26
	EXPECT_TVM=0.26 .venv-tvm026/bin/python $(PYTEST) -m smoke

test-tvm025: .venv-tvm025/.ready  ## smoke tests on TVM 0.25
	EXPECT_TVM=0.25 .venv-tvm025/bin/python $(PYTEST) -m smoke

lint: env  ## ruff: rules and format; codespell
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/codespell

types: env  ## mypy, strict, and a user's program with the installed package
	$(PY) -m mypy
	$(PY) -m mypy --strict --config-file= --ignore-missing-imports tests/types/public_interface.py

format: env  ## let ruff fix and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

fuzz: env  ## the property tests, many more examples; PyTorch's database of operators, out/operator_database.jsonl, resumed
	EXPECT_TVM=0.27 HYPOTHESIS_PROFILE=fuzz $(PY) $(PYTEST) -m "not slow"
	$(PY) scripts/operator_database.py

bench: $(if $(filter relay,$(BENCH_IR)),env-relay,env)  ## time the three operators against torch and stock TVM (BENCH_IR=relay: Relay), write out/
	mkdir -p out
	for kind in $(BENCH_KINDS); do \
	  .venv$(if $(filter relay,$(BENCH_IR)),-relay)/bin/python scripts/bench.py --ir $(BENCH_IR) --cases $(BENCH_CASES) --kind $$kind \
	    $(BENCH_ARGS) --json out/$(basename $(notdir $(BENCH_CASES)))-$$kind-$(BENCH_IR).json || exit 1; \
	done

bench-layers: env-rivals  ## time single layers against PyTorch, stock TVM, ONNX Runtime and OpenVINO, write out/bench-*.json
	mkdir -p $(OUT)
	for layers in bench-conv_transpose bench-conv_weight_grad bench_conv-conv bench_conv-conv_weight_grad; do \
	  $(bench_layers) --rivals torch,stock,symbolic,onnxruntime,openvino --json $(OUT)/$$layers.json || exit 1; \
	done
	for layers in bench-conv_transpose bench_conv-conv; do \
	  $(bench_layers) --rivals torch --dtype bfloat16 --json $(OUT)/$$layers-bfloat16.json || exit 1; \
	done

# So `bench-torch-compile` measures the steps of `bench-training` too: the baselines of both are the same.
WITH_STEPS := --modes inference training step --step-json docs/measured/bench_training.json

measured: env-rivals env-models env-relay  ## renew the files in docs/measured on this machine, and the tables of the documents: some two hours
	$(MAKE) OUT=docs/measured STEP="$(WITH_STEPS)" bench-layers bench-models bench-torch-compile bench-first-call bench-attention bench-relay bench-busy bench-int8
	$(PY) scripts/figures.py

dist: env  ## the sdist and the wheel, checked, and tried in fresh environments without the checkout
	$(PIP) install --quiet --editable ".[release]"
	rm -rf dist
	$(PY) -m build --quiet
	$(PY) -m twine check --strict dist/*
	for file in dist/*; do \
	  $(PY) -m venv --clear .venv-dist && \
	  .venv-dist/bin/python -m pip --disable-pip-version-check install --quiet $(TVM_027) $$file && \
	  (cd / && $(CURDIR)/.venv-dist/bin/python -W error::DeprecationWarning $(CURDIR)/scripts/try_install.py) || exit 1; \
	done

try-python:  ## the package in a fresh environment of PYTHON, such as PYTHON=python3.13: a layer and its gradient
	$(PYTHON) -m venv --clear .venv-try
	.venv-try/bin/python -m pip --disable-pip-version-check install --quiet $(TVM_027) .
	cd / && $(CURDIR)/.venv-try/bin/python -W error::DeprecationWarning $(CURDIR)/scripts/try_install.py

growth: env  ## time the three operators as sizes grow, against torch and the machine's limits, write out/growth.*
	$(PY) scripts/scaling.py

clean:  ## remove environments, caches and what the targets wrote
	rm -rf .venv .venv-models .venv-rivals .venv-tvm026 .venv-tvm025 .venv-relay .venv-relay-tf .venv-aarch64 .venv-dist .venv-try build dist out report python/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: pyproject.toml Makefile
	@command -v $(PYTHON) >/dev/null || { echo "make env: PYTHON=$(PYTHON) not found; name a Python 3.11, e.g. make env PYTHON=python3"; exit 1; }
	@rm -f $@
	@echo "installing TVM, torch and the tools into .venv: a few minutes, about 2 GB"
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit('make env: Python %d.%d must be 3.11 or newer' % v)"
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade $(TVM_027) $(TORCH) --editable ".[dev]"
	$(PIP) check
	@touch $@

.venv/.docs: .venv/.ready
	$(PIP) install --quiet --editable ".[docs]"
	@touch $@

# An older TVM needs only its own two packages: everything else comes from .venv by a .pth file, which Python
# appends to the path, so what is installed here wins. conftest.py checks the release by EXPECT_TVM.
.venv-tvm026/.ready: PINS = $(TVM_026)
.venv-tvm025/.ready: PINS = $(TVM_025)
.venv-tvm026/.ready .venv-tvm025/.ready: .venv/.ready
	@rm -f $@
	$(PY) -m venv --clear --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --quiet --no-deps $(PINS)
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)/python')" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	@touch $@

# The same trick: pip sees torch and NumPy as they are, and adds what is missing.
.venv-models/.ready: .venv/.ready
	@rm -f $@
	$(PY) -m venv --clear --without-pip $(@D)
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)/python')" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	$(PIP) --python $(@D)/bin/python install --quiet $(MODELS)
	@touch $@

.venv-rivals/.ready: .venv/.ready
	@rm -f $@
	$(PY) -m venv --clear --without-pip $(@D)
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)/python')" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	$(PIP) --python $(@D)/bin/python install --quiet $(OPENVINO)
	@touch $@

# The same trick. `import tvm` finds the TVM inside the wheel by a finder that relay.pth starts; it compiles stand-ins
# for CUDA's libraries where there are none.
.venv-relay/.ready: .venv/.ready python/relay_ext/locate_tvm.py
	@rm -f $@
	$(PY) -m venv --clear --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --quiet $(RELAY_NEEDS)
	$(PIP) --python $(@D)/bin/python install --quiet --no-deps $(TVM_RELAY)
	site=$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
	  $(PY) -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)/python')" > "$$site/shared.pth" && \
	  $(PY) python/relay_ext/locate_tvm.py > "$$site/relay.pth"
	$(@D)/bin/python -c "import tvm, tvm.relay; print('Relay of TVM', tvm.__version__)"
	@touch $@

# Once more, on top of .venv-relay: TensorFlow 2.15 wants a NumPy and a protobuf of its own.
.venv-relay-tf/.ready: .venv-relay/.ready
	@rm -f $@
	@echo "installing TensorFlow into .venv-relay-tf: about 1 GB"
	$(PY) -m venv --clear --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --quiet --no-deps $(TENSORFLOW) $(TENSORFLOW_NEEDS)
	site=$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
	  for below in .venv-relay .venv; do $$below/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"; done \
	    > "$$site/shared.pth" && echo "$(CURDIR)/python" >> "$$site/shared.pth" && \
	  $(PY) python/relay_ext/locate_tvm.py > "$$site/relay.pth"
	TF_CPP_MIN_LOG_LEVEL=3 $(@D)/bin/python -c "import tensorflow, tvm.relay; print('TensorFlow', tensorflow.__version__)"
	@touch $@

# No environment, but what the wheels for Arm hold; of their libraries, those of the runtime.
.venv-aarch64/.ready: .venv/.ready
	@rm -rf $(@D)
	$(PIP) download --quiet --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 \
	  --python-version 3.11 --dest $(@D)/wheels $(TVM_027)
	for wheel in $(@D)/wheels/*.whl; do $(PY) -m zipfile -e $$wheel $(@D); done
	rm -r $(@D)/wheels $(@D)/tvm/lib/libtvm_compiler.so
	@touch $@
