#!/bin/bash -eu
# OSS-Fuzz calls this with CXX, CXXFLAGS, LIB_FUZZING_ENGINE, SRC, WORK and OUT.
here=$SRC/omnihvd/tests/fuzz
cmake -S "$here" -B "$WORK/fuzz" -G Ninja -DCMAKE_BUILD_TYPE=None
cmake --build "$WORK/fuzz"
for program in "$WORK"/fuzz/fuzz_*; do
  cp "$program" "$OUT"
  name=$(basename "$program")
  zip -qj "$OUT/${name}_seed_corpus.zip" "$here/corpus/${name#fuzz_}"/*
done
