"""Where the data of the models is: in a folder, on the net, or in installed packages.

    DIR/criteo/{train,test}.csv      10,000 rows each, label and 39 columns (authors of DeepLight)
    DIR/wikitext-2/*.txt             or any text
    DIR/sst2/{train,dev,test}.tsv    sentence, tab, 0 or 1
    DIR/ml-100k/u.data               MovieLens, or ratings.csv of any of its sizes
    DIR/cifar-10/                    the binary version, or train/CLASS/*.jpg and test/CLASS/*.jpg
    DIR/imagenet/nNNNNNNNN_NAME.JPEG (with --full)

None of the data comes with omnihvd: if you load it, you accept its licence. Missing data is
replaced by data of installed packages, or drawn at random, and each task says so.
"""

from __future__ import annotations

import importlib.util
import shutil
import urllib.error
import urllib.request
from pathlib import Path

GITHUB = "https://raw.githubusercontent.com"
DEEPLIGHT = f"{GITHUB}/WayneDW/DeepLight_Deep-Lightweight-Feature-Interactions/master/data"
WIKITEXT = f"{GITHUB}/pytorch/examples/main/word_language_model/data/wikitext-2"
SST2 = f"{GITHUB}/clairett/pytorch-sentiment-classification/master/data/SST2"
DOWNLOADS = {  # by folder: file, and where it is; archives are unpacked
    "criteo": {f"{part}.csv": f"{DEEPLIGHT}/tiny_{part}_input.csv" for part in ("train", "test")},
    "wikitext-2": {f"{part}.txt": f"{WIKITEXT}/{part}.txt" for part in ("train", "valid", "test")},
    "sst2": {f"{part}.tsv": f"{SST2}/{part}.tsv" for part in ("train", "dev", "test")},
    "ml-100k": {"ml-100k.zip": "https://files.grouplens.org/datasets/movielens/ml-100k.zip"},
    "cifar-10": {"binary.tar.gz": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"},
}
PATIENCE_S = 30.0  # of a connection


def files(data: Path | None, name: str, *patterns: str) -> list[Path]:
    """Those in or below data/name that match the first of the patterns that any does."""
    for pattern in patterns if data else ():
        found = sorted((data / name).rglob(pattern))  # type: ignore[operator]
        if found:
            return found
    return []


def download(data: Path, name: str) -> str | None:
    """Fills data/name, if there is nothing yet. Returns what went wrong; None: it is there."""
    folder = data / name
    if any(folder.glob("*")) or name not in DOWNLOADS:
        return None
    loading = data / f".{name}.loading"  # what breaks off leaves no half of it
    try:
        loading.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        return (
            f"{name}: {loading} cannot be made: {why}. Give --data a folder that you may write to"
        )
    try:
        for file, address in DOWNLOADS[name].items():
            answered = urllib.request.urlopen(address, timeout=PATIENCE_S)
            with answered as answer, (loading / file).open("wb") as target:
                shutil.copyfileobj(answer, target)
            if file.endswith((".zip", ".tar.gz")):
                shutil.unpack_archive(loading / file, loading)
                (loading / file).unlink()
        loading.rename(folder)
    except (urllib.error.URLError, OSError, shutil.ReadError) as why:
        return f"{name} cannot be loaded from {address}: {why}"
    finally:
        shutil.rmtree(loading, ignore_errors=True)
    return None


def of_package(package: str, path: str) -> Path | None:
    """A file in an installed package, which is not imported; None: it is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / path
    return file if file.exists() else None
