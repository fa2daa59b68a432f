"""A system that withholds something: stand-ins for its libraries, in other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
ENCRYPTS = """
from groups import in_threads
secret = "the secret of a test"
print(in_threads(2, lambda rank, group: None, encrypt=True, secret=secret))
"""
NO_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void* dlopen(const char* name, int flags) {
  static void* (*original)(const char*, int);
  if (!original) original = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return name && strstr(name, "libcrypto") ? 0 : original(name, flags);
}
"""
NO_RANDOM = """
#include <errno.h>
#include <sys/types.h>
ssize_t getrandom(void* to, size_t size, unsigned flags) { errno = ENOSYS; return -1; }
"""
DLSYM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static int no() { return 0; }
void* dlsym(void* library, const char* name) {
  typedef void* Original(void*, const char*);
  static Original* original;
  if (!original) original = (Original*)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return strcmp(name, "EVP_CipherInit_ex") ? original(library, name) : (void*)ANSWER;
}
"""


def library(folder: Path, source: str, *options: str) -> Path:
    (folder / "it.c").write_text(source)
    made = folder / "libit.so"
    command = ["cc", "-w", "-shared", "-fPIC", *options, folder / "it.c", "-o", made]
    subprocess.run(command, check=True, timeout=60)
    return made


def said(program: str, preload: Path) -> str:
    path = os.pathsep.join([str(TESTS / "session"), *filter(None, sys.path)])
    env = {**os.environ, "LD_PRELOAD": str(preload), "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout + done.stderr


NO_PROTECTION = """
#include <errno.h>
#include <stddef.h>
int mprotect(void* at, size_t size, int how) { errno = EACCES; return -1; }
"""
CALLER = "#include <stdlib.h>\nint call(const char* text) { return atoi(text); }"
SHIM = "int two(const char* text) { return 2; }"
HOOKS = """
import ctypes
from omnihvd import engine
library = ctypes.CDLL({0!r})
engine.hook.install({0!r}, "atoi", {1!r}, "two")
"""


def test_a_host_that_forbids_mprotect(tmp_path: Path) -> None:
    made = []
    for name, source in (("caller", CALLER), ("shim", SHIM)):
        (tmp_path / name).mkdir()
        options = ("-fno-builtin", "-Wl,-z,relro,-z,now")
        made.append(str(library(tmp_path / name, source, *options)))
    expected = "does a security policy of this host forbid mprotect()?"
    assert expected in said(HOOKS.format(*made), library(tmp_path, NO_PROTECTION))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (NO_LIBRARY, "needs OpenSSL's libcrypto (libcrypto.so.3 or .1.1), which was not found"),
        (DLSYM.replace("ANSWER", "0"), "OpenSSL's libcrypto lacks EVP_CipherInit_ex"),
        (
            DLSYM.replace("ANSWER", "no"),
            "OpenSSL's libcrypto offers no AES-GCM here: install another build of it",
        ),
        (NO_RANDOM, "no random numbers from the kernel: "),
    ],
)
def test_what_encryption_needs(tmp_path: Path, source: str, expected: str) -> None:
    assert expected in said(ENCRYPTS, library(tmp_path, source))
