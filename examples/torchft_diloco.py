"""DiLoCo under torchft: replicas train by themselves, and average their changes now and then.

    torchft_lighthouse --min_replicas 2 --bind 127.0.0.1:29510 &
    for i in 1 2 3; do
        TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510 python examples/torchft_diloco.py --replica $i &
    done

Kill a replica: the others go on. Start it again: it gets the parameters of the others, and takes
part. A replica is one process here. Replicas average the outer gradient. It is zero in the rows of
the embedding that no replica has met since, and those are not sent. Needs `pip install torchft`.
"""

from __future__ import annotations

import argparse
import hashlib
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager
from torchft.local_sgd import DiLoCo

import omnihvd
from omnihvd.torch.torchft import ProcessGroupOmnihvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replica", default="1", help="its name")
    parser.add_argument("--rounds", type=int, default=50, help="outer steps")
    parser.add_argument("--sync-every", type=int, default=10, help="steps in a round")
    parser.add_argument("--rows", type=int, default=50_000, help="of the embedding, of 32 floats")
    parser.add_argument("--timeout", type=float, default=30, help="of a sum, in seconds")
    return parser.parse_args()


def batch(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """64 bags of 8 words, half of them among the first eighth; the label: whether even words are
    more than odd ones."""
    share = torch.rand(64, 8, generator=generator)
    words = (rows * share**3).long()
    return words, (words % 2 == 0).float().mean(1).gt(0.5).long()


def digest(model: nn.Module) -> str:
    """The same for the same parameters, bit for bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:12]


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(1)
    model = nn.Sequential(nn.EmbeddingBag(args.rows, 32), nn.Linear(32, 2))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    # A replica's own ranks would meet at this store.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=args.timeout)
    manager = Manager(
        pg=ProcessGroupOmnihvd(timeout),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,  # DiLoCo's condition
        timeout=timeout,
        replica_id=f"replica{args.replica}-",
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    generator = torch.Generator().manual_seed(int.from_bytes(args.replica.encode(), "big"))
    with DiLoCo(manager, [model], inner, outer, sync_every=args.sync_every):
        while manager.current_step() < args.rounds:
            before = manager.current_step()
            for _ in range(args.sync_every):
                words, labels = batch(args.rows, generator)
                loss = nn.functional.cross_entropy(model(words), labels)
                inner.zero_grad()
                loss.backward()
                inner.step()
            if manager.current_step() > before:
                print(
                    f"round {manager.current_step()}: {manager.num_participants()} replicas, "
                    f"loss {loss:.3f}, parameters {digest(model)}",
                    flush=True,
                )
    print(omnihvd.stats(), flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main()
