import sys

from benchmarks.bench.command import main

sys.exit(main(sys.argv[1:]))
