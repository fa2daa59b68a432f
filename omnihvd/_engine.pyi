# The engine's Python module (csrc/python) is compiled; its names are seen at run time only.
from typing import Any

def __getattr__(name: str) -> Any: ...
