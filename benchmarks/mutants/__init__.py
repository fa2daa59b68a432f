"""A mutation score: how many of the bugs that a machine plants do the tests find?

    python -m benchmarks.mutants --json benchmarks/results/mutants.json

sites       a place in the source and what stands there in the mutant; the sample
cxx         finds sites in C++ by libclang, and builds all mutants into one copy of a file
python      the same for Python modules, by ast
tree        the copy of this repository that has all mutants, and a switch that chooses one
coverage    which mutants a test reaches, kept for the next run
server      one process has imported all tests, and forks for each mutant
killers     random simulated jobs and the fuzz targets, as tests
score       results by part and operator; equal.txt lists mutants that no test can tell
"""
