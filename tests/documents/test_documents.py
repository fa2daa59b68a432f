"""The commands and snippets of README.md, docs and examples, read out of them, do what they say.

A command is run as it stands or in a cheap form, by RULES, or is named there with the reason why
not; one that no rule knows fails. Snippets of Python are compiled and, where nothing hinders,
executed on stand-ins for the reader's own variables.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock, create_autospec

import pytest
import yaml
from processes import run_beside

import omnihvd
from omnihvd import inline

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "examples/README.md",
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
PROGRAMS = {"pip", "omnihvd", "make", "horovodrun", "mpirun", "torchrun", "python", "sysctl"}
PROGRAMS |= {".ci/gpu", ".venv/bin/python", "srun", "docker", "head"}
BEFORE_PROGRAMS = re.compile(r"^\(?((export|umask \d+;|sudo|\w+=\S*)\s+)*")

# The script that readers have: one sum on each rank, which has to be taken.
TRAIN = """
import sys
import horovod.torch as hvd
import torch
omnihvd = sys.modules.get("omnihvd") or __import__("omnihvd")
hvd.init()
x = hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="x")
assert x.eq(hvd.size()).all() and hvd.size() == 2
assert omnihvd.stats()["calls"] == 1
"""
UNDER_TORCHRUN = "import os, sys; assert 'omnihvd' in sys.modules; print(os.environ['RANK'])"


# --- what the documents have --------------------------------------------------------------------


class Block(NamedTuple):
    document: Path
    text: str


def code_blocks(path: Path) -> list[Block]:
    """Fenced, or indented by four spaces after an empty line."""
    text = path.read_text()
    found = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"(?:\A|\n\n)((?:(?:    .*)?\n)+)", rest)
    found += ["\n".join(line[4:] for line in block.splitlines()) for block in indented]
    return [Block(path, block.strip("\n")) for block in found if block.strip()]


def inline_code(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def is_command(line: str) -> bool:
    words = BEFORE_PROGRAMS.sub("", line).split()
    return (bool(words) and words[0] in PROGRAMS) or line.startswith("export ")


def commands_of(block: Block) -> list[str]:
    """A block's shell commands, without their comments; none of another block."""
    lines = [re.sub(r"\s+# .*", "", line) for line in block.text.splitlines() if line.strip()]
    return lines if all(map(is_command, lines)) else []


def python_of(block: Block) -> str | None:
    """The snippet, of a session what was typed; None: it is no Python."""
    text = block.text
    if text.startswith(">>>"):
        return "\n".join(re.findall(r"^>>> (.*)", text, re.M))
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text


BLOCKS = [block for document in DOCUMENTS for block in code_blocks(document)]
SHELL = [block for block in BLOCKS if commands_of(block)]
MANIFESTS = [block for block in BLOCKS if block.text.startswith("apiVersion: ")]
PYTHON = [block for block in BLOCKS if not commands_of(block) and python_of(block) is not None]
INLINE = [code for document in DOCUMENTS for code in inline_code(document) if is_command(code)]
# Pictures and output, by what they begin with.
TEXTS = [
    "flowchart TB",
    '{"step": 7',
    "rank 0            rank 1",
    "kernel compact -> host function",
    "mark > ncclAllReduce",
    "sums taken: ",
    "gradients of a step: not zero",
    "omnihvd ... takes over the sums of horovod.torch",
    "encode | all_to_all of the codes",
    "[omnihvd warning host rank 0] ",
    "rank 0: omnihvd: an allreduce has failed",
]


# --- what becomes of a command ------------------------------------------------------------------

Cheap = Callable[["re.Match[str]"], str]


def with_options(m: re.Match[str], shown_by: str) -> str:
    """Checks that a command's options are in its help or source, found by `shown_by`."""
    options = re.findall(r"(?<!\S)--[a-z][\w-]*", m[0][m.end(1) - m.start() :].split(" -- ")[0])
    checks = [rf"grep -qPe '{option}(?![\w-])' options.txt" for option in options]
    return "\n".join([f"{shown_by} >options.txt", *checks])


def of_script(m: re.Match[str]) -> str:
    return with_options(m, f"cat {ROOT}/{m[1]}")


def of_help(m: re.Match[str]) -> str:
    return with_options(m, f"{m[1]} --help")


def small_job(m: re.Match[str]) -> str:
    """The same on two ranks of this machine."""
    command = (
        m[0].replace(" ... ", " ").replace("horovodrun", "horovodrun --mpi-args=--oversubscribe")
    )
    command = re.sub(r"mpirun", "mpirun --oversubscribe", command)
    command = re.sub(r"(-np|--nproc-per-node) \d+", r"\1 2", command)
    command = re.sub(r"--host \S+ ", "", command)
    return re.sub(r"OMNIHVD_AGGREGATORS=\S+", "OMNIHVD_AGGREGATORS=$address", command)


def tour(m: re.Match[str]) -> str:
    """A few steps instead of 60; of the model with a large text, the options alone."""
    if m["model"] == "words":
        return with_options(m, f"cat {ROOT}/examples/pytorch_models.py {ROOT}/omnihvd/report/*.py")
    return m.string.replace("examples/", f"{ROOT}/examples/") + " --steps 6"


def tour_again(m: re.Match[str]) -> str:
    if "out/words" in m.string:
        return "omnihvd report --help"
    words = re.sub(r"--plot \S+", "--plot picture.png", m.string)
    return f"{words}\ntest -s picture.png"


# The first that fits; a string instead of a function says why the command is not run.
RULES: list[tuple[str, Cheap | str]] = [
    (r"pip install '\.\[(\w+)\]'$", lambda m: f"grep -q '^{m[1]} = ' {ROOT}/pyproject.toml"),
    (r"(\w+=\S+ )?pip install", "takes minutes and a package registry: `make setup`"),
    (r"make (?P<target>\S+)$", lambda m: f"make -n -C {ROOT} {m['target']}"),
    (r"\.ci/gpu", "needs a GPU"),
    (r"sysctl", "changes the machine"),
    (r".*python examples/failures\.py", "test_failures_to_try.py runs it"),
    (r"torchrun( --[\w-]+( \d+)?)+$", "an option's name"),
    (r"docker (run|pause)", "needs Docker"),
    (r"srun .*(torchrun|omnihvd aggregator)", of_help),
    (r"(srun .* )?python -m omnihvd train\.py$", "other launchers run the same"),
    (r"OMNIHVD_ENABLE=0 python", "test_horovod.py: test_disabled_leaves_horovod_alone"),
    (r"python train\.py$", "tests/cli/test_run.py starts one process"),
    (r"(mpirun -x )?LD_PRELOAD=", "tests/mpi and tests/nccl preload the shims"),
    (r"omnihvd (was imported|\.\.\. takes over)", "a message"),
    (r"\(umask", lambda m: m.string.replace("/shared/", "")),
    (r"export \w+=", lambda m: m.string),
    (
        r"omnihvd aggregator --bind",
        lambda m: (
            "omnihvd aggregator --bind 127.0.0.1:0 >aggregator.txt & trap 'kill %1' EXIT\n"
            "until grep -q ' at ' aggregator.txt; do sleep 0.1; done\n"
            "address=$(sed 's/.* at //' aggregator.txt)"
        ),
    ),
    (r"python -m omnihvd --report out/(?P<model>\w+) examples/pytorch_models\.py", tour),
    (r"omnihvd report out/\w+ .*--plot", tour_again),
    (
        r"(.*--report) .* train\.py$",
        lambda m: with_options(m, f"cat {ROOT}/omnihvd/report/options.py"),
    ),
    (r"omnihvd (check --settings|stats)$", lambda m: m[0]),
    (r"(omnihvd [\w-]+)", of_help),
    (r"(?:horovodrun|mpirun|torchrun) .*(omnihvd check)", of_help),
    (r"(python -m omnihvd\.demo)", of_help),  # tests/cli/test_demo.py runs it
    (r"(python -m omnihvd\.tools\.build_horovod)", of_help),
    (r"(horovodrun)( --?[\w-]+)*$", of_help),
    (r"(python -m benchmarks\.(?:bench|mutants))", of_help),
    (r"\.venv/bin/(python -m benchmarks\.bench\.lab)", of_help),
    (r"(python -m simulator)", of_help),
    (
        r"mpirun( -\S+( [\w=]+)+)*$",
        lambda m: m[0] + ("" if " -np " in m[0] else " -np 1") + " true",
    ),
    (
        r"torchrun .*-m omnihvd train\.py$",
        lambda m: f'echo "{UNDER_TORCHRUN}" >train.py\n{small_job(m)}',
    ),
    (r".* python (-m omnihvd )?train\.py$", small_job),
    (
        r"(?:.*python |(?:\w+=\S+ )?torchrun [^.]*)((?:examples|benchmarks|omnihvd)/[\w/]+\.py)",
        of_script,
    ),
]


def cheap_form(command: str) -> str | None:
    """The command that is run for it; None: nothing, for a reason that RULES have."""
    command = re.sub(r"^sudo ", "", command)
    for pattern, action in RULES:
        m = re.match(pattern + r"(?P<rest>.*)" * (not pattern.endswith("$")), command)
        if m:
            return None if isinstance(action, str) else action(m)
    return f"echo 'RULES has none for: {command}'; false"


def scripts() -> list[str]:
    """Each once: the commands of a block run one after another, in one shell."""
    found = []
    for commands in [*map(commands_of, SHELL), *([code] for code in INLINE)]:
        lines = [line for line in map(cheap_form, commands) if line]
        if lines:
            found.append("\n".join(lines))
    return list(dict.fromkeys(found))


# --- tests --------------------------------------------------------------------------------------


def test_nothing_is_overlooked() -> None:
    assert len(SHELL) >= 8 and len(PYTHON) >= 5 and len(INLINE) >= 20
    for block in BLOCKS:
        if block not in [*SHELL, *PYTHON, *MANIFESTS]:
            assert block.text.strip().startswith(tuple(TEXTS)), block


def test_an_unknown_command_fails() -> None:
    assert "RULES has none for: make a mess" in str(cheap_form("make a mess"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.splitlines()[0][:60])
def test_commands(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    path = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}", "OMNIHVD_MIN_BYTES": "1024"}
    env["OMP_NUM_THREADS"] = "1"
    run_beside([["bash", "-ec", f"cd {tmp_path}\n{script}"]], [env], timeout=50)


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda b: b.document.name)
def test_manifests(block: Block) -> None:
    """Kubernetes' manifests parse, and RULES know the containers' commands."""
    templates = yaml.safe_load(block.text)["spec"]["mpiReplicaSpecs"].values()
    containers = [c for t in templates for c in t["template"]["spec"]["containers"]]
    commands = [" ".join(c["command"]) for c in containers if "command" in c]
    assert commands
    for command in commands:
        assert "RULES has none" not in str(cheap_form(command))


class Anything(dict[str, object]):
    """The reader's variables. Nothing is known of them, so only other names can be wrong."""

    def __missing__(self, name: str) -> object:
        if hasattr(builtins, name):
            raise KeyError(name)
        return MagicMock(name=name)


@pytest.mark.parametrize(
    "block", PYTHON, ids=lambda b: f"{b.document.name}: {b.text.splitlines()[0][:40]}"
)
def test_snippets(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = python_of(block)
    assert text is not None
    if text.startswith('"""'):  # a whole script: an example, which tests/test_examples.py runs
        examples = [path.read_text().strip() for path in (ROOT / "examples").glob("*.py")]
        assert text in examples
        return
    # tests/clusters runs these; here each call must have a name and a signature that there is.
    for module, names in {
        "ray": ["init"],
        "horovod.ray": ["RayExecutor"],
        "horovod.spark": ["run"],
    }.items():
        if re.search(rf"^(import|from) {module}\b", text, re.M):
            real = pytest.importorskip(module, exc_type=ImportError)
            for name in names:
                monkeypatch.setattr(real, name, create_autospec(getattr(real, name)))
    if "omnihvd.torch.torchft" in text:  # for real in tests/torch_distributed
        pytest.importorskip("torchft")
    if "import inline" in text:  # for real in tests/inline
        monkeypatch.setattr("omnihvd.inline.Worker", create_autospec(inline.Worker))
    tree = ast.parse(text)
    frameworks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "omnihvd.keras"
    ]
    if frameworks:  # would import TensorFlow
        source = ast.parse((ROOT / "omnihvd/keras.py").read_text())
        defined = {getattr(node, "name", None) for node in source.body}
        assert {alias.name for node in frameworks for alias in node.names} <= defined
    elif "import omnihvd.keras" not in text:
        mine = Anything(loader=[1], batches=[1])
        exec(
            compile(tree, block.document.name, "exec"),
            {"omnihvd": omnihvd, "__name__": "__main__"},
            mine,
        )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", path.read_text(), re.M)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, target
