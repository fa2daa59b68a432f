# The engine's Python module (csrc/python), one file for each submodule.
# tests/session/test_engine_stubs.py compares these files with the compiled module.
from . import codec as codec
from . import hook as hook
from . import session as session
from . import transport as transport

class EngineError(RuntimeError): ...

def build_id() -> str: ...
def load_part(name: str) -> None: ...
