"""Executes kernels in PTX, on the memory of this process.

Independent of the emulation (../emulation), which runs the CUDA source compiled for a CPU: here it
is what NVIDIA's compiler made of that. An instruction does what "Parallel Thread Execution ISA"
says, and no other than those that the kernels have is known.

Threads of a CTA have program counters of their own. The threads at the lowest one step together;
which others may overtake them, `order` says. Waits for a warp's lanes (shfl.sync, ...) are waits
for all of its mask, those of bar.sync for the CTA. Products and sums are rounded one by one, where
they say so (.rn), and where they leave it open. Misaligned accesses and waits that never end are
errors.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import operations
from .text import WIDTHS, Entry, Instruction, Operand, Place, Register, Symbol

_RUNS, _WAITS, _AT_BARRIER, _ENDED = range(4)
_SYNCS = ("shfl", "vote", "match", "bar")
_FIRST = 4096  # below, nothing is


class _Everything:
    """All of this process' memory as an array of numbers of a width."""

    def __init__(self, width: int) -> None:
        self.__array_interface__ = {
            "shape": ((1 << 47) // width,), "typestr": f"<u{width}", "data": (_FIRST, False),
            "version": 3,
        }  # fmt: skip


_MEMORY = {width: np.asarray(_Everything(width)) for width in (1, 2, 4, 8)}


class Fault(Exception):
    pass


def run(entry: Entry, arguments: bytes, ctas: int, order: int = 0) -> None:
    """order: 0: all threads of a CTA step together as far as they can; else a seed by which warps
    are drawn that run ahead of the others. CTAs come one after another. Raises Fault."""
    assert len(arguments) == entry.parameter_bytes
    drawn = random.Random(order)
    numbers = list(range(ctas))
    drawn.shuffle(numbers)
    for cta in numbers:
        Cta(entry, arguments, cta, ctas, drawn if order else None).run()


class Cta:
    def __init__(
        self, entry: Entry, arguments: bytes, cta: int, ctas: int, drawn: random.Random | None
    ) -> None:
        threads = entry.threads
        self.entry, self.drawn = entry, drawn
        self.pc = np.zeros(threads, np.int64)
        self.state = np.full(threads, _RUNS, np.int8)
        self.warp = np.arange(threads) // 32
        self.registers: dict[str, np.ndarray] = {}
        fixed = {"%tid.x": np.arange(threads), "%ntid.x": threads, "%ctaid.x": cta,
                 "%nctaid.x": ctas, "%laneid": np.arange(threads) % 32}  # fmt: skip
        self.special = {
            name: np.broadcast_to(np.asarray(value, np.uint64), threads)
            for name, value in fixed.items()
        }
        self.arguments = np.frombuffer(arguments, np.uint8)
        # Its first content is not known.
        self.shared = np.full(entry.shared_bytes // 8 + 1, 0xA5A5A5A5A5A5A5A5, np.uint64)

    def run(self) -> None:
        while True:
            ready = np.flatnonzero(self.state == _RUNS)
            if not len(ready):
                if (self.state == _ENDED).all():
                    return
                self._pass_barrier()
                continue
            if self.drawn:
                ready = ready[self.warp[ready] == self.warp[self.drawn.choice(ready)]]
            pc = self.pc[ready].min()
            here = self.pc == pc
            if self.drawn:
                here &= self.warp == self.warp[ready[0]]
            group = np.flatnonzero(here & (self.state <= _WAITS))
            others = ready[self.pc[ready] > pc]
            self._go(group, int(pc), int(self.pc[others].min()) if len(others) else 1 << 60)

    def _go(self, group: np.ndarray, pc: int, others: int) -> None:
        """From there on, until threads part, wait, or others come as far."""
        instructions = self.entry.instructions
        while pc < others:
            if pc >= len(instructions):
                raise Fault("a thread runs past the end")
            instruction = instructions[pc]
            what = instruction.parts[0]
            if what in _SYNCS:
                self._meet(group, pc, instruction)
                return
            active = group
            if instruction.guard is not None:
                holds = self.registers[instruction.guard][group] != instruction.negated
                active = group[holds]
            if what == "bra":
                (target,) = instruction.operands
                assert isinstance(target, Symbol)
                if len(active) == len(group):
                    before, pc = pc, self.entry.labels[target.name]
                    if pc <= before:  # a loop: others may be due
                        break
                    continue
                if not len(active):
                    pc += 1
                    continue
                self.pc[group] = pc + 1
                self.pc[active] = self.entry.labels[target.name]
                self.state[group] = _RUNS
                return
            if what in ("ret", "exit"):
                self.pc[group] = pc + 1
                self.state[group] = _RUNS
                self.state[active] = _ENDED
                return
            if len(active):
                try:
                    self._execute(instruction, active)
                except (Fault, KeyError, ValueError) as error:
                    raise Fault(f"{self.entry.name}, line {instruction.line}: {error!r}") from error
            pc += 1
        self.pc[group] = pc
        self.state[group] = _RUNS

    # --- waiting for each other

    def _pass_barrier(self) -> None:
        live = self.state != _ENDED
        if (self.state[live] == _WAITS).any():
            raise Fault(f"{self.entry.name}: lanes wait for lanes that do not come")
        self.pc[live] += 1
        self.state[live] = _RUNS

    def _meet(self, group: np.ndarray, pc: int, instruction: Instruction) -> None:
        """Lanes that have all come go on, the others wait."""
        if instruction.guard is not None:
            raise Fault("a guarded instruction that waits")
        self.pc[group] = pc
        if instruction.parts[:2] == ("bar", "sync"):
            self.state[group] = _AT_BARRIER
            return
        self.state[group] = _WAITS
        for warp in np.unique(self.warp[group]):
            here = (self.warp == warp) & (self.pc == pc) & (self.state == _WAITS)
            lanes = np.flatnonzero(here)
            masks = operations.unsigned(self._read(instruction.operands[-1], lanes), 4)
            if (masks != masks[0]).any():
                raise Fault("lanes of a warp meet with different masks")
            wanted = [32 * int(warp) + i for i in range(32) if int(masks[0]) >> i & 1]
            if not set(lanes.tolist()) <= set(wanted):
                raise Fault("a lane waits that is not of its mask")
            if len(lanes) < len(wanted):
                if (self.state[wanted] == _ENDED).any():
                    raise Fault(f"line {instruction.line}: lanes wait for lanes that have ended")
                continue
            if instruction.parts[0] != "bar":
                self._exchange(instruction, lanes, operations.EXCHANGES[instruction.parts[0]])
            self.pc[lanes] = pc + 1
            self.state[lanes] = _RUNS

    def _exchange(self, instruction: Instruction, lanes: np.ndarray, how: Callable) -> None:
        """A part of a warp: what each lane gets of what they have."""
        *targets, operands = self._targets(instruction)
        values = [self._read(operand, lanes) for operand in operands[:-1]]
        results = how(instruction.parts, lanes % 32, *values)
        for target, result in zip(targets, results):
            self._write(target, lanes, result)

    @staticmethod
    def _targets(instruction: Instruction) -> list[Any]:
        operands = instruction.operands
        pair = instruction.parts[0] == "shfl"  # d|p
        return [*operands[: 1 + pair], operands[1 + pair :]]

    # --- one instruction, of threads that step together

    def _execute(self, instruction: Instruction, threads: np.ndarray) -> None:
        what = instruction.parts[0]
        if what == "ld":
            self._load(instruction, threads)
        elif what == "st":
            self._store(instruction, threads)
        elif what == "atom":
            self._atom(instruction, threads)
        elif what == "nanosleep":
            time.sleep(1e-6)
        elif what in ("membar", "fence"):
            pass
        elif what == "mov" and any(isinstance(o, tuple) for o in instruction.operands):
            self._pack(instruction, threads)
        elif instruction.parts == ("cvta", "shared", "u64"):
            value = self._read(instruction.operands[1], threads)
            self._write(
                instruction.operands[0], threads, value + np.uint64(self.shared.ctypes.data)
            )
        else:
            target, *sources = instruction.operands
            values = [self._read(source, threads) for source in sources]
            with np.errstate(all="ignore"):
                self._write(target, threads, operations.result(instruction.parts, *values))

    def _read(self, operand: Operand, threads: np.ndarray) -> np.ndarray:
        """Raw bits, in uint64; of predicates, bools."""
        if isinstance(operand, Register):
            if operand.name in self.special:
                return self.special[operand.name][threads]
            return self.registers[operand.name][threads]
        if isinstance(operand, Symbol):
            return np.full(len(threads), self.entry.shared[operand.name], np.uint64)
        assert isinstance(operand, int)
        return np.full(len(threads), operand & (1 << 64) - 1, np.uint64)

    def _write(self, operand: Operand, threads: np.ndarray, values: np.ndarray) -> None:
        assert isinstance(operand, Register)
        if operand.name == "_":
            return
        register = self.registers.get(operand.name)
        if register is None:
            kind = bool if operand.name.startswith("%p") else np.uint64
            register = self.registers[operand.name] = np.zeros(len(self.pc), kind)
        register[threads] = values

    def _pack(self, instruction: Instruction, threads: np.ndarray) -> None:
        target, source = instruction.operands
        bits = 8 * WIDTHS[instruction.type]
        if isinstance(source, tuple):
            part = bits // len(source)
            value = np.zeros(len(threads), np.uint64)
            for i, piece in enumerate(source):
                piece_bits = operations.unsigned(self._read(piece, threads), part // 8)
                value |= piece_bits << np.uint64(i * part)
            self._write(target, threads, value)
            return
        assert isinstance(target, tuple)
        part = bits // len(target)
        value = self._read(source, threads)
        for i, piece in enumerate(target):
            shifted = value >> np.uint64(i * part)
            self._write(piece, threads, operations.unsigned(shifted, part // 8))

    # --- memory

    def _address(self, instruction: Instruction, place: Operand, threads: np.ndarray) -> np.ndarray:
        assert isinstance(place, Place)
        address = self._read(place.base, threads) + np.uint64(place.offset & (1 << 64) - 1)
        if "shared" in instruction.parts:
            address = address + np.uint64(self.shared.ctypes.data)
        return address

    @staticmethod
    def _places(address: np.ndarray, width: int, count: int) -> np.ndarray:
        if (address % np.uint64(width * count)).any():
            raise Fault(f"misaligned: {count} x {width} bytes at {int(address[0]):#x}")
        if (address < _FIRST).any() or (address >= 1 << 47).any():
            raise Fault(f"no address: {int(address[0]):#x}")
        return (address - np.uint64(_FIRST)) // np.uint64(width)

    def _load(self, instruction: Instruction, threads: np.ndarray) -> None:
        target, place = instruction.operands
        targets = target if isinstance(target, tuple) else (target,)
        width = WIDTHS[instruction.type]
        if "param" in instruction.parts:
            assert isinstance(place, Place) and isinstance(place.base, Symbol)
            at = self.entry.parameters[place.base.name][0] + place.offset
            for i, one in enumerate(targets):
                piece = self.arguments[at + i * width : at + (i + 1) * width].tobytes()
                value = np.full(len(threads), int.from_bytes(piece, "little"), np.uint64)
                self._write(one, threads, value)
            return
        address = self._address(instruction, place, threads)
        places = self._places(address, width, len(targets))
        loaded = [_MEMORY[width][places + np.uint64(i)] for i in range(len(targets))]
        for one, values in zip(targets, loaded):
            self._write(one, threads, operations.widened(values, instruction.type))

    def _store(self, instruction: Instruction, threads: np.ndarray) -> None:
        place, source = instruction.operands
        sources = source if isinstance(source, tuple) else (source,)
        width = WIDTHS[instruction.type]
        address = self._address(instruction, place, threads)
        places = self._places(address, width, len(sources))
        for i, one in enumerate(sources):
            values = operations.unsigned(self._read(one, threads), width)
            _MEMORY[width][places + np.uint64(i)] = values.astype(f"u{width}")

    def _atom(self, instruction: Instruction, threads: np.ndarray) -> None:
        target, place, source = instruction.operands
        width = WIDTHS[instruction.type]
        address = self._address(instruction, place, threads)
        places = self._places(address, width, 1)
        given = operations.unsigned(self._read(source, threads), width).astype(f"u{width}")
        combine = {"add": np.add, "or": np.bitwise_or}[instruction.parts[-2]]
        before = np.zeros(len(threads), np.uint64)
        memory = _MEMORY[width]
        for i, at in enumerate(places):
            before[i] = memory[at]
            memory[at] = combine(memory[at], given[i])
        self._write(target, threads, before)
