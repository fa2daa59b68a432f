"""The six models are the published ones, and train alike whoever sums their gradients."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zipfile
from pathlib import Path

import pytest
from launch import ENVIRONMENT, STREAM, launch, torchrun
from processes import run_beside

HERE = Path(__file__).parents[2] / "examples" / "models"
sys.path.insert(0, str(HERE))
torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

import bert  # noqa: E402
import deeplight  # noqa: E402
import links  # noqa: E402
import model_jobs  # noqa: E402
import ncf  # noqa: E402
import pictures  # noqa: E402
import sources  # noqa: E402
import training  # noqa: E402
import zeros  # noqa: E402
from compared import ALONE  # noqa: E402
from registry import MODELS  # noqa: E402
from task import area_under_curve  # noqa: E402

from omnihvd.report import masks  # noqa: E402

RANKS, STEPS = 2, 4
BYTES = {**os.environ, **ENVIRONMENT, **STREAM, "OMNIHVD_MIN_BYTES": "1024"}


def parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())


def test_full_models_have_the_published_numbers_of_parameters():
    with torch.device("meta"):
        assert parameters(pictures.Vgg19(224, 1000, 1.0)) == 143_667_240
        assert parameters(pictures.ResNet152(224, 1000, 1.0)) == 60_192_808
        layers, width, heads, words, *_ = bert.SIZES["full"]
        body = bert.Bert(words, 512, width, heads, layers, 2)
        assert parameters(body.layers) == 24 * (12 * 1024**2 + 13 * 1024)
        users, items = ncf.ML_20M
        he = ncf.NeuMF(users, items, 64, (256, 256, 128, 64))
        in_layers = 256 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 + 64 + 1
        assert parameters(he) == (users + items) * 192 + in_layers
        deep = deeplight.DeepFwFM(1000, 400)
        in_layers = 390 * 400 + 2 * 400 * 400 + 3 * 400 + 400 + 1
        assert parameters(deep) == 10 * 1000 + 39 * 10 + 39 * 39 + in_layers


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_zeros_are_counted_by_elements_and_blocks(count):
    tensor = torch.zeros(count)
    tensor[1::300] = 1  # 1, 301, 601: each in a block of its own
    filled, blocks = len(range(1, count, 300)), -(-count // 256)
    by_element, by_block = zeros.shares([tensor, torch.zeros(0)])
    assert by_element == pytest.approx(1 - filled / max(count, 1))
    assert by_block == pytest.approx(1 - filled / max(blocks, 1))


@pytest.mark.parametrize("name", ["ncf", "lstm"])
def test_masks_are_those_of_each_rank(tmp_path, name):
    found = zeros.measure(name, None, "tiny", RANKS, 1, masks=tmp_path / "m.npz")
    read = masks.load(tmp_path / "m.npz")
    assert 4 * read.elements.sum() == found["bytes"]
    assert list(read.steps) == [0] * RANKS and list(read.ranks) == list(range(RANKS))
    tasks = [MODELS[name](None, "tiny", rank, RANKS) for rank in range(RANKS)]
    model = training.drawn_model(tasks[0], 0)
    for task, present in zip(tasks, read.presence(RANKS, 32)):
        model.zero_grad()
        task.loss(model, task.batch(0, 0)).backward()
        named = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in named]
        padded = [torch.nn.functional.pad(g.reshape(-1), (0, -g.numel() % 32)) for g in grads]
        expected = torch.cat(padded).view(-1, 32).ne(0).any(1).numpy()
        assert expected.sum() > 0 and (present == expected).all()


def test_area_under_the_curve():
    labels = torch.tensor([0.0, 0, 1, 1])
    assert area_under_curve(torch.tensor([1.0, 2, 3, 4]), labels) == 1
    assert area_under_curve(torch.tensor([4.0, 3, 2, 1]), labels) == 0
    assert area_under_curve(torch.tensor([1.0, 3, 2, 4]), labels) == 0.75
    assert area_under_curve(torch.zeros(4), labels) == 0.5


def test_fields_are_paired_with_their_weights():
    """Each pair of fields once, by a sum over pairs."""
    model = deeplight.DeepFwFM(50, 4).eval()
    rows = torch.randint(50, (3, deeplight.FIELDS))
    values = torch.rand(3, deeplight.FIELDS)
    found = model.table(rows) * values[..., None]
    right = (found * model.first).sum((1, 2)) + model.deep(found.flatten(1))[:, 0]
    for i in range(deeplight.FIELDS):
        for j in range(i + 1, deeplight.FIELDS):
            weight = (model.between[i, j] + model.between[j, i]) / 2
            right = right + weight * (found[:, i] * found[:, j]).sum(1)
    torch.testing.assert_close(model(torch.stack([rows.double(), values.double()], 1)), right)


def test_what_is_missing_is_loaded_whole_or_not_at_all(tmp_path, monkeypatch):
    there, folder = tmp_path / "there", tmp_path / "data"
    there.mkdir()
    with zipfile.ZipFile(there / "ml.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", "1\t2\t5\t0\n")
    archive = {"ml.zip": (there / "ml.zip").as_uri()}
    monkeypatch.setattr(sources, "DOWNLOADS", {"ml-100k": archive, "sst2": {}})
    assert sources.download(folder, "ml-100k") is None
    (found,) = sources.files(folder, "ml-100k", "u.data", "*.csv")
    assert found.read_text() == "1\t2\t5\t0\n"
    broken = {**archive, "other.tsv": (there / "none").as_uri()}
    monkeypatch.setattr(sources, "DOWNLOADS", {"sst2": broken})
    assert "sst2 cannot be loaded from file:" in sources.download(folder, "sst2")
    assert [path.name for path in folder.iterdir()] == ["ml-100k"]
    (tmp_path / "file").write_text("no folder")
    said = sources.download(tmp_path / "file", "sst2")
    assert said.startswith(f"sst2: {tmp_path / 'file' / '.sst2.loading'} cannot be made: ")
    assert said.endswith("Give --data a folder that you may write to")


def test_data_of_a_folder_is_used_and_named(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "text.txt").write_text("the quick brown fox jumps . " * 3000)
    task = MODELS["lstm"](tmp_path, "tiny")
    assert (task.vocabulary, task.source) == (6, "18,000 words of text.txt")
    assert "drawn" in MODELS["ncf"](tmp_path, "tiny").source


def values(of: torch.Tensor) -> list[float]:
    return sorted(float(picture.mean()) for picture in of)


def test_ranks_share_out_the_pictures_of_imagenet(tmp_path):
    """Each picture has a brightness of its own, and is on one rank or held out."""
    from PIL import Image

    (tmp_path / "imagenet").mkdir()
    for i in range(24):
        picture = Image.new("RGB", (224, 224), (i, i, i))
        picture.save(tmp_path / "imagenet" / f"n{i % 3}_{i}.JPEG", "PNG")
    tasks = [MODELS["vgg19"](tmp_path, "full", rank, 4) for rank in range(4)]
    inputs = torch.cat([task.inputs for task in tasks])
    assert values(torch.cat([inputs, tasks[0].held_out[0]])) == [i / 64 - 2 for i in range(24)]
    assert {len(task.inputs) for task in tasks} == {5} and len(tasks[0].held_out[0]) == 4
    for task in tasks:
        assert torch.equal(task.held_out[0], tasks[0].held_out[0])
        held = zip(*task.held_out)
        for picture, target in [*zip(task.inputs, task.targets), *held]:
            assert target == round(64 * (float(picture.mean()) + 2)) % 3
    assert tasks[0].source == "24 pictures of ImageNet"


def test_the_test_part_of_cifar_is_held_out(tmp_path):
    (tmp_path / "cifar-10").mkdir()
    for name, numbers in (("data_batch_1.bin", range(30)), ("test_batch.bin", range(30, 40))):
        records = b"".join(bytes([i % 10]) + bytes([i]) * (pictures.RECORD - 1) for i in numbers)
        (tmp_path / "cifar-10" / name).write_bytes(records)
    tasks = [MODELS["vgg19"](tmp_path, "default", rank, 4) for rank in range(4)]
    inputs = torch.cat([task.inputs for task in tasks])
    assert values(inputs) == [i / 64 - 2 for i in range(30)]
    for task in tasks:
        assert values(task.held_out[0]) == [i / 64 - 2 for i in range(30, 40)]
        assert task.source == "40 pictures of CIFAR-10"


@pytest.mark.parametrize("name", MODELS)
def test_each_model_learns(name):
    task = MODELS[name](None, "tiny")
    model = training.drawn_model(task, 0)
    # With one batch again and again: that it can be learnt, not how fast.
    batch = task.batch(0, 0)
    task.batch = lambda seed, step: batch
    trained = training.train(task, model, task.optimizer(model), lambda: None, 0, 40, points=2)
    assert sum(trained.losses[-5:]) < 0.97 * sum(trained.losses[:5])
    assert [step for step, _ in trained.curve] == [20, 40]
    assert trained.curve[-1][1] == task.quality(model)


def in_one_process(name) -> list[float]:
    """Mean losses of ranks. Their gradients are summed by hand."""
    tasks = [MODELS[name](None, "tiny", rank, RANKS) for rank in range(RANKS)]
    models = [training.drawn_model(task, 0) for task in tasks]
    optimizers = [task.optimizer(model) for task, model in zip(tasks, models)]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: tasks[0].rate(n / STEPS))
        for optimizer in optimizers
    ]
    losses = []
    for step in range(STEPS):
        for task, model, optimizer in zip(tasks, models, optimizers):
            optimizer.zero_grad()
            loss = task.loss(model, task.batch(0, step))
            loss.backward()
            losses.append(loss.item())
        for both in zip(*(model.parameters() for model in models)):
            mean = sum(p.grad for p in both) / RANKS
            for parameter in both:
                parameter.grad = mean.clone()
        for each in (*optimizers, *schedules):
            each.step()
    return [sum(losses[i : i + RANKS]) / RANKS for i in range(0, len(losses), RANKS)]


@pytest.fixture(scope="module")
def losses() -> dict[str, list[float]]:
    return {name: in_one_process(name) for name in ("ncf", "deeplight", "resnet152")}


def check(found, losses, tolerance):
    for name, of_model in found.items():
        assert len(of_model) == STEPS
        assert of_model == pytest.approx(losses[name], rel=tolerance), name


def test_losses_under_horovod(losses):
    steps = []
    found = model_jobs.run(
        {"model": "ncf", "size": "tiny", "methods": ["omnireduce"], "steps": STEPS, "points": 1},
        *(RANKS, lambda *told: steps.append(told[1:])),
        **{"env": BYTES, "timeout": 60},
    )
    check({"ncf": found[0]["losses"]}, losses, 1e-5)
    assert steps == [(i + 1, STEPS) for i in range(STEPS)]
    links.check(losses["ncf"], found[0]["losses"])
    with pytest.raises(links.Differs, match="differ at step 1"):
        links.check([1.01 * loss for loss in losses["ncf"]], found[0]["losses"])


def test_each_arithmetic_has_a_job_in_the_setting_that_suits_horovod(monkeypatch):
    jobs = []

    def run(given, hosts, tell, *, lab, mca, env, timeout):
        jobs.append((given["methods"], env["OMNIHVD_ARITHMETIC"], mca))
        return [{"method": given["methods"][0], "step_s": 1.0}]

    monkeypatch.setattr(model_jobs, "run", run)
    slower, faster = links.BEST
    settings = {slower.name: 2.0, faster.name: 1.0}
    given = {"model": "ncf", "steps": STEPS}
    words = (given, RANKS, None, settings, lambda *_: None, 60)
    found = links.measure_alone(ALONE["arithmetic"], *words)
    assert jobs == [([way], way, faster.mca) for way in ("integer", "switchml")]
    assert {way: (e["method"], e["setting"]) for way, e in found.items()} == {
        way: (way, faster.name) for way in ("integer", "switchml")
    }
    assert all(len(entry["commit"]) == 40 for entry in found.values())


def test_a_job_that_fails_says_why():
    with pytest.raises(model_jobs.JobError, match=r"exit 1: (.|\n)*KeyError: 'nothing'"):
        model_jobs.run({}, 1, print, under=["-c", "raise KeyError('nothing')"], timeout=60)


def test_quality_goes_on_where_it_was_stopped(tmp_path):
    """Four of five methods are there, and stay."""
    of = {"seed": 0, "steps": 2, "ranks": 2, "curve": [[2, 0.5]], "reached_s": [1.0]}
    there = [
        {"method": method, "rate": None, **of}
        for method in ("horovod", "omnireduce", "fp16", "codec")
    ]
    (tmp_path / "ncf.json").write_text(json.dumps({"quality": there}))
    command = [sys.executable, HERE / "run.py", "--model", "ncf", "--parts", "quality", "--hosts"]
    command += ["2", "--quality-steps", "2", "--seeds", "1", "--missing", "--local"]
    command += ["--output", tmp_path]
    run_beside([command], [BYTES], timeout=60)
    entries = json.loads((tmp_path / "ncf.json").read_text())["quality"]
    found = [entry for entry in entries if entry not in there]
    assert len(entries) == 5 and len(found) == 1
    assert (found[0]["method"], found[0]["steps"], found[0]["ranks"]) == ("block_topk", 2, 2)
    assert [step for step, _ in found[0]["curve"]] == [1, 2]
    assert 0 < found[0]["reached_s"][0] < found[0]["reached_s"][1] and found[0]["rate"] is None


def test_losses_under_ddp(tmp_path, losses):
    words = ["--model", "ncf", "resnet152", "--size", "tiny", "--steps", str(STEPS)]
    words += ["--omnireduce", "--json", tmp_path / "losses"]
    (job,) = run_beside([torchrun(RANKS, HERE / "ddp.py", *words)], [BYTES], timeout=60)
    check(json.loads((tmp_path / "losses").read_text()), losses, 1e-4)
    assert "takes over PyTorch's sums over Gloo" in job.output


@pytest.mark.slow
@pytest.mark.parametrize("legacy", ["1", "0"], ids=["keras 2", "keras 3"])
def test_losses_under_keras(tmp_path, losses, legacy):
    pytest.importorskip("tensorflow")
    command = [HERE / "keras_versions.py", "--model", "ncf", "deeplight", "--size", "tiny"]
    command += ["--steps", str(STEPS), "--json", tmp_path / "losses"]
    env = {**STREAM, "OMNIHVD_MIN_BYTES": "1024", "TF_USE_LEGACY_KERAS": legacy}
    launch(command, RANKS, env=env, timeout=90)
    check(json.loads((tmp_path / "losses").read_text()), losses, 5e-4)


def arguments(monkeypatch, *words):
    sys.modules.pop("run", None)
    import run

    monkeypatch.setattr(sys, "argv", ["run.py", "--model", "ncf", *words])
    return run, run.parse_arguments()


def test_steps_are_of_each_part_unless_that_has_its_own(monkeypatch):
    _, args = arguments(monkeypatch, "--local", "--steps", "3")
    assert (args.steps, args.zeros_steps, args.quality_steps) == (3, 3, 3)
    _, args = arguments(monkeypatch, "--local", "--steps", "3", "--quality-steps", "9")
    assert (args.steps, args.zeros_steps, args.quality_steps) == (3, 3, 9)
    _, args = arguments(monkeypatch, "--local")
    assert (args.steps, args.zeros_steps, args.quality_steps) == (40, 20, None)


def test_a_run_is_as_many_jobs_and_steps_as_are_foretold(monkeypatch):
    """Durations of the paths that begin jobs, here without any."""
    import duration

    run, args = arguments(monkeypatch, "--local", "--steps", "3", "--seeds", "2", "--hosts", "2")
    begun = {"links": [], "quality": []}

    def job(given, hosts, tell, **more):
        part = "quality" if given.get("points") else "links"
        begun[part].append(given["steps"] * len(given["methods"]) * len(given["seeds"]))
        entry = {"seed": given["seeds"][0], "steps": 3, "ranks": 2, "curve": [[3, 0.5]]}
        entry |= {"step_s": 1.0, "losses": [1.0] * 3, "bytes": 1}
        entry |= {"reached_s": [3.0], "first_s": 1.0}
        return [{**entry, "method": method} for method in given["methods"]]

    monkeypatch.setattr(model_jobs, "run", job)
    monkeypatch.setattr(run, "save", lambda *_: None)
    bars, result = type("Bars", (), {"tell": lambda *_: None})(), {}
    pieces = len(run.pieces_of("ncf", args, result))
    work = duration.work_of(args, "ncf", pieces)
    run.links_of("ncf", args, bars, result)
    run.quality_of("ncf", args, bars, result)
    for part, steps in begun.items():
        assert (work[part].jobs, work[part].steps) == (len(steps), sum(steps)), part


def test_steps_by_integers_leave_the_others_alone(monkeypatch):
    import duration

    run, args = arguments(
        monkeypatch, *("--parts", "links", "--only", "arithmetic", "--rates", "10gbit")
    )
    begun = []

    def measure(ways, given, hosts, rate, settings, tell, timeout):
        assert ways == ("integer", "switchml")
        begun.append((rate, dict(settings)))
        return {"integer": {"step_s": 1.0}, "switchml": {"step_s": 2.0}}

    monkeypatch.setattr(links, "measure_alone", measure)
    monkeypatch.setattr(run, "save", lambda *_: None)
    before = {"horovod": {"step_s": 3.0}, "switchml": {"step_s": 9.0}}
    there = {"settings": {"ring": 3.0}, "methods": before, "predicted": {"horovod": 1.0}}
    result = {"links": {"10gbit": there, "1gbit": {"methods": {}}}}
    run.alone_of("ncf", args, type("Bars", (), {"tell": lambda *_: None})(), result)
    assert begun == [("10gbit", {"ring": 3.0})]
    assert result["links"]["1gbit"] == {"methods": {}}
    after = result["links"]["10gbit"]
    steps = {method: entry["step_s"] for method, entry in after["methods"].items()}
    assert steps == {"horovod": 3.0, "integer": 1.0, "switchml": 2.0}
    assert (after["settings"], after["predicted"]) == ({"ring": 3.0}, {"horovod": 1.0})
    work = duration.work_of(args, "ncf", 0)["links"]
    assert (work.jobs, work.steps) == (2, 2 * args.steps)


@pytest.mark.slow
@pytest.mark.timeout(520)
def test_a_run_takes_about_as_long_as_is_foretold(tmp_path):
    command = [sys.executable, HERE / "run.py", "--model", "ncf", "--local", "--hosts", "2"]
    command += ["--steps", "3", "--seeds", "1", "--output", tmp_path]
    start = time.monotonic()
    (job,) = run_beside([command], [{**BYTES, "COLUMNS": "200"}], timeout=500)
    took = time.monotonic() - start
    parts = dict(re.findall(r"(zeros|links|quality) (\d+ (?:s|minutes))", job.output))
    units = {"s": 1, "minutes": 60}
    foretold = sum(int(t.split()[0]) * units[t.split()[1]] for t in parts.values())
    assert len(parts) == 3 and 0.5 < foretold / took < 2, (foretold, took)
