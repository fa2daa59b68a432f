.PHONY: build
build:
	@CMAKE_ARGS=-DOMNIHVD_WERROR=ON .venv/bin/python setup.py -q build_ext --inplace
