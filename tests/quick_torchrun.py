"""torchrun, for a warm Python (warm/): to import it takes two seconds of a processor."""

from __future__ import annotations

import torch  # noqa: F401
from torch.distributed.run import main

if __name__ == "__main__":
    main()
