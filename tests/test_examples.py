"""The example's model is what it says, and the demo notices when something is wrong."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launch import ENVIRONMENT, STREAM, launch, torchrun
from processes import run_beside

import omnihvd

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

import demo  # noqa: E402
import language_model as example  # noqa: E402


def softmax(words: int, width: int, samples: int) -> example.SampledSoftmax:
    return example.SampledSoftmax(words, width, samples, torch.Generator().manual_seed(1))


def test_the_default_text_has_the_words_it_needs():
    words, vocabulary = example.load_text(None)
    assert vocabulary >= 25_000
    counts = torch.bincount(words, minlength=vocabulary)
    assert (counts[:-1] >= counts[1:]).all()  # the sampler takes the most frequent word to be 0
    assert counts[-1] > 0


def test_with_every_word_drawn_it_is_the_full_softmax():
    torch.manual_seed(1)
    layer = softmax(words=20, width=8, samples=5000)
    hidden, target = torch.randn(30, 8), torch.randint(20, (30,))
    full = torch.nn.functional.cross_entropy(hidden @ layer.weight.t() + layer.bias, target)
    torch.testing.assert_close(layer(hidden, target), full)


def test_words_are_drawn_log_uniformly():
    words, samples, rounds = 50, 20, 4000
    layer = softmax(words, width=1, samples=samples)
    hidden, target = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    drawn = torch.zeros(words)
    for _ in range(rounds):  # each word drawn has a gradient in its bias
        layer.zero_grad()
        layer(hidden, target).backward()
        drawn += layer.bias.grad != 0
    expected = layer.log_drawn.exp()[1:]
    error = (expected * (1 - expected) / rounds).sqrt()
    assert ((drawn[1:] / rounds - expected).abs() < 5 * error).all()


def test_gradients_of_the_tables_are_sparse():
    words, vocabulary = example.load_text(None)
    torch.manual_seed(1)
    model = example.LanguageModel(vocabulary, 32, softmax(vocabulary, 32, 512))
    loss, _ = model(*next(example.batches(words, 16, 32)), None)
    loss.backward()
    for table in (model.embedding.weight, model.softmax.weight):
        assert 0 < (table.grad != 0).any(1).float().mean() < 0.02


def test_batches_continue_each_column():
    words = torch.arange(103)
    data = example.batches(words, batch_size=2, sequence=10)
    first, second = next(data), next(data)
    assert first[0].shape == first[1].shape == (10, 2)
    assert first[0][:, 1].tolist() == list(range(51, 61))
    assert torch.equal(first[1], first[0] + 1)
    assert torch.equal(second[0][0], first[0][-1] + 1)
    with pytest.raises(SystemExit, match="too short"):
        next(example.batches(words, batch_size=20, sequence=10))


def test_the_demo_notices(capsys):
    plain = {"losses": [4.0, 3.0]}
    stats = {"calls": 2, "passed": {}}
    demo.check(plain, {"losses": [4.0, 3.000001], "stats": [stats] * 2})
    with pytest.raises(demo.DemoError, match=r"differ at step 2: 3.0 and, with OmniReduce, 3.1"):
        demo.check(plain, {"losses": [4.0, 3.1], "stats": [stats] * 2})
    with pytest.raises(demo.DemoError, match="differ at step 1"):
        demo.check(plain, {"losses": [float("nan"), 3.0], "stats": [stats] * 2})
    idle = {"calls": 0, "passed": {"small": {"calls": 2, "bytes": 8}}}
    with pytest.raises(demo.DemoError, match=r"took no call on rank 1.*small.*omnihvd check"):
        demo.check(plain, {"losses": [4.0, 3.0], "stats": [stats, idle]})


@pytest.mark.timeout(100)
def test_the_quick_demo_compares_ddp_with_itself():
    command = [
        sys.executable,
        EXAMPLES / "demo.py",
        "--under",
        "ddp",
        "--ranks",
        "2",
        "--steps",
        "10",
    ]
    (job,) = run_beside([command], [{**os.environ, "OMP_NUM_THREADS": "1"}], timeout=90)
    assert "DDP + OmniReduce: step 10/10" in job.output
    assert "losses of all 10 steps agree" in job.output
    for row in ("gradients, a step", "sent or copied, a step", "time a step"):
        assert row in job.output
    assert re.search(r"sent or copied.* [\d.]+x fewer", job.output), job.output
    assert re.search(r"time a step.* ([\d.]+x (faster|slower)|the same)", job.output), job.output
    assert "Now yours: torchrun" in job.output.splitlines()[-1]


# Gloo's threads, alive when Python is finalized, abort the process now and then. Runs a script,
# argv[1]. After all handlers of atexit, no such thread may be left.
ENDS_CLEANLY = f"""
import atexit, os, runpy, sys

@atexit.register
def check():
    folder = "/proc/self/task"
    names = [open(f"{{folder}}/{{task}}/comm").read() for task in os.listdir(folder)]
    if [name for name in names if "gloo" in name]:
        print("left at the end:", names, flush=True)
        os._exit(3)

del sys.argv[0]
sys.path.insert(0, "{EXAMPLES}")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STEPS = 8


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog . " * 400)
    return ["--text", text, "--steps", STEPS, "--width", 16, "--learning-rate", 1, "--json"]


@pytest.fixture(scope="module")
def losses(tmp_path_factory, options):
    """Plain Horovod's, on two ranks."""
    path = tmp_path_factory.mktemp("horovod") / "report.json"
    launch([EXAMPLES / "pytorch_language_model.py", *options, path], 2)
    return json.loads(path.read_text())["losses"]


def under_torchrun(folder, name, *words, ends_cleanly=False, timeout=60):
    """Report and output of an example on two ranks."""
    env = {**os.environ, **ENVIRONMENT, **STREAM, "OMNIHVD_MIN_BYTES": "1024"}
    path = folder / "report.json"
    command = [EXAMPLES / name, *words, path]
    if ends_cleanly:
        (folder / "script.py").write_text(ENDS_CLEANLY)
        command.insert(0, folder / "script.py")
    (job,) = run_beside([torchrun(2, *command)], [env], timeout=timeout)
    return json.loads(path.read_text()), job.output


def check(report, losses):
    assert len(report["losses"]) == STEPS
    assert report["losses"][-1] < 0.9 * report["losses"][0]
    assert report["losses"] == pytest.approx(losses, rel=1e-5)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", [["--omnireduce"], ["--omnireduce", "hook"]])
def test_ddp_trains_as_horovod_does(tmp_path, options, losses, how):
    words = ["--device", "cpu", *how, *options]
    all_freed = how[-1] != "hook"  # its DDP and group are there until Python ends
    report, output = under_torchrun(tmp_path, "pytorch_ddp.py", *words, ends_cleanly=all_freed)
    check(report, losses)
    assert output.count("takes over PyTorch's sums over Gloo") == all_freed
    assert (report["ranks"], report["backend"]) == (2, "gloo")
    assert len(report["step_seconds"]) == STEPS
    assert all(rank["calls"] >= STEPS for rank in report["stats"])


@pytest.mark.timeout(150)
@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_libraries_train_as_horovod_does(tmp_path, options, losses, library):
    pytest.importorskip(library)
    name = f"{library}_language_model.py"
    report, _ = under_torchrun(tmp_path, name, *options, ends_cleanly=True)
    check(report, losses)
    assert all(rank["calls"] >= STEPS for rank in report["stats"])


@pytest.mark.slow
@pytest.mark.timeout(300)  # DeepSpeed compiles an extension at its first start
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="pip install deepspeed")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeeds_zero_trains_as_horovod_does(tmp_path, options, losses, stage, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    words = ["--stage", stage, *options]
    report, _ = under_torchrun(tmp_path, "deepspeed_language_model.py", *words, timeout=240)
    check(report, losses)
    assert all(rank["calls"] >= STEPS for rank in report["stats"])


@pytest.mark.timeout(150)
def test_the_elastic_example_trains_as_horovod_does(tmp_path, options, losses):
    discovery = ["--host-discovery-script", EXAMPLES / "this_host.sh"]
    launch(
        [EXAMPLES / "pytorch_elastic.py", *options, tmp_path / "report.json"],
        2,
        launcher="horovodrun",
        options=["--min-np", "1", "--network-interface", "lo", *map(str, discovery)],
        env={**STREAM, "OMNIHVD_MIN_BYTES": "1024"},
    )
    report = json.loads((tmp_path / "report.json").read_text())
    check(report, losses)
    assert report["sizes"] == [2] * STEPS


@pytest.mark.timeout(100)
@pytest.mark.parametrize("compression", ["none", "omnireduce"])
def test_the_recommender_trains_on_a_file_of_ratings(tmp_path, compression):
    ratings = tmp_path / "ratings.csv"
    lines = [f"{user},{user * 7 % 50},5,0" for user in range(300)]
    ratings.write_text("\n".join(["userId,movieId,rating,timestamp", *lines]))
    log = tmp_path / "log.csv"
    command = [EXAMPLES / "keras_recommender.py", "--ratings", ratings, "--log", log]
    command += ["--epochs", "2", "--batch-size", "32", "--compression", compression]
    job = launch(command, 2, env={**STREAM, "OMNIHVD_MIN_BYTES": "1024"}, timeout=90)
    header, first, last = (line.split(",") for line in log.read_text().splitlines())
    loss = header.index("loss")
    assert float(last[loss]) < float(first[loss])
    used = compression == "omnireduce"
    assert ("sent_of_ring" in header) == used
    assert job.ranks[0].count("OmniReduce: {'") == used


@pytest.mark.timeout(100)
def test_the_custom_loop_trains_on_a_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog . " * 200)
    command = [EXAMPLES / "tensorflow2_custom_loop.py", "--text", text, "--steps", "40"]
    command += ["--learning-rate", "1"]
    job = launch(command, 2, env={**STREAM, "OMNIHVD_MIN_BYTES": "1024"}, timeout=90)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", job.ranks[0])]
    assert losses[1] < losses[0] < 10
    assert job.ranks[0].count("OmniReduce: {'") == 1


def test_the_first_job_prints_what_its_page_says():
    job = launch([EXAMPLES / "first_job.py"], 2, env=STREAM)
    page = (EXAMPLES.parent / "docs/first_job.md").read_text()
    losses = re.findall(r"^    (step .*)", page, re.M)
    assert re.findall(r"^step .*", job.ranks[0], re.M) == losses != []
    said, printed = (re.search(r"\{'density.*\}", text)[0] for text in (page, job.ranks[0]))
    assert ast.literal_eval(printed) == pytest.approx(ast.literal_eval(said), rel=0.05)
    (taken,) = set(re.findall(r"sums taken: \d+, of [\d.]+ MB", page))
    assert taken in job.output
    assert f"omnihvd {omnihvd.__version__} takes over" in job.output


def test_the_first_job_runs_without_omnihvd(tmp_path):
    script = tmp_path / "first_job.py"
    script.write_text((EXAMPLES / "first_job.py").read_text().replace("100_000", "1_000"))
    job = launch([script], 2, env={"OMNIHVD_ENABLE": "0"})
    printed = ast.literal_eval(re.search(r"\{'density.*\}", job.ranks[0])[0])
    assert len(printed) == 3 and set(printed.values()) == {None}
