#include "simulator/csrc/bad_job_plan.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "numeric/block_ops.h"

namespace omnihvd::simulation {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kElements = 1 << 14;  // of all ranks of a sum together, about

int64_t value_at(uint32_t rank, uint64_t index) {
  return int64_t((index * 31 + rank * 7) % 11) + 1;
}

Shape shape_of(Dice& dice, uint32_t ranks, uint32_t shares) {
  Shape shape;
  shape.dtype = dice.one_of<DType>({DType::f32, DType::f64, DType::i32, DType::i64, DType::f16});
  shape.block_size = dice.one_of<uint32_t>({1, 2, 3, 8, 32});
  const uint64_t most = std::max<uint64_t>(1, kElements / ranks);
  const uint64_t border = shape.block_size * dice.between(1, 8);
  shape.count = dice.one_of<uint64_t>({0, 1, border - 1, border, border + 1, dice.below(most)});
  shape.aggregators = shares;
  shape.stripe = dice.one_of<uint32_t>({1, 2, 4});
  shape.window = shape.stripe * uint32_t(dice.between(1, 6));
  shape.slots = uint32_t(dice.between(1, 4));
  if (dice.chance(0.2) && (shape.dtype == DType::f32 || shape.dtype == DType::f16))
    shape.codec.kind = CodecKind::lossless;
  return shape;
}

// Chooses an arithmetic in which none of the inputs rounds.
Arithmetic arithmetic_of(Dice& dice, const Shape& shape, uint32_t ranks) {
  if (shape.codec || !dice.chance(0.5)) return {};
  const auto kind = dice.one_of<ArithmeticKind>({ArithmeticKind::integers, ArithmeticKind::switchml,
                                                 ArithmeticKind::fpisa, ArithmeticKind::fpisa_a});
  return Arithmetic::of(kind, shape.dtype, ranks);
}

SumPlan sum_of(Dice& dice, uint32_t ranks, uint32_t shares) {
  SumPlan sum;
  sum.shape = shape_of(dice, ranks, shares);
  sum.shape.arithmetic = arithmetic_of(dice, sum.shape, ranks);
  sum.fix();
  sum.scan_ahead = uint32_t(dice.one_of<uint64_t>({1, 5, 64, 2048}));
  sum.slots_at_once = uint32_t(dice.between(1, 5));
  sum.ordered = dice.chance(0.3);
  sum.deal(dice, ranks);
  return sum;
}

uint64_t time_of(Dice& dice) { return dice.below(dice.one_of<uint64_t>({300, 3'000, 100'000})); }

}  // namespace

void SumPlan::deal(Dice& dice, uint32_t ranks) {
  in_place = dice.chance(0.5);
  const double density = dice.one_of<double>({0, 0.02, 0.2, 0.7, 1});
  const uint64_t slowest = dice.one_of<uint64_t>({1, 200, 20'000});
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    begins_us.push_back(dice.below(slowest));
    std::vector<bool>& blocks = has.emplace_back(shape.blocks());
    for (size_t block = 0; block < blocks.size(); ++block) blocks[block] = dice.chance(density);
  }
}

Faults network_faults(Dice& dice, uint32_t hosts, bool* stays_cut) {
  Faults faults;
  faults.lost = dice.one_of<double>({0, 0.001, 0.05, 0.3});
  faults.twice = dice.one_of<double>({0, 0, 0.01, 0.3});
  faults.late = dice.one_of<double>({0, 0, 0.02, 0.5});
  faults.late_us = dice.one_of<uint64_t>({10, 300, 100'000});
  faults.partly = dice.one_of<double>({0, 0, 0.1});
  if (dice.chance(0.2)) {
    const uint64_t from = time_of(dice);
    const bool heals = dice.chance(0.7);
    Faults::Cut cut{from, heals ? from + time_of(dice) * 20 : kNever, std::vector<bool>(hosts)};
    for (uint32_t host = 0; host < hosts; ++host) cut.half[host] = dice.chance(0.5);
    *stays_cut |= !heals;
    faults.cuts.push_back(std::move(cut));
  }
  for (uint64_t jumps = dice.chance(0.2) ? dice.between(1, 3) : 0; jumps > 0; --jumps)
    faults.jumps.push_back({uint32_t(dice.below(hosts)), time_of(dice),
                            dice.one_of<uint64_t>({1'000, 1'000'000, 60'000'000})});
  return faults;
}

std::vector<uint8_t> SumPlan::encoded(const std::vector<int64_t>& values) const {
  std::vector<uint8_t> bytes(values.size() * size_of(shape.dtype));
  std::vector<float> halves(shape.dtype == DType::f16 ? values.size() : 0);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* const at = bytes.data() + i * size_of(shape.dtype);
    const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
    if (shape.dtype == DType::f32) put(float(values[i]));
    if (shape.dtype == DType::f64) put(double(values[i]));
    if (shape.dtype == DType::i32) put(int32_t(values[i]));
    if (shape.dtype == DType::i64) put(values[i]);
    if (shape.dtype == DType::f16) halves[i] = float(values[i]);
  }
  if (!halves.empty()) block_ops(DType::f16).finish(bytes.data(), halves.data(), halves.size());
  return bytes;
}

std::vector<uint8_t> SumPlan::input(uint32_t rank) const {
  std::vector<int64_t> values(shape.count);
  for (uint64_t i = 0; i < shape.count; ++i)
    if (has[rank][i / shape.block_size]) values[i] = value_at(rank, i);
  return encoded(values);
}

std::vector<uint8_t> SumPlan::expected(const std::vector<uint32_t>& ranks) const {
  std::vector<int64_t> values(shape.count);
  for (const uint32_t rank : ranks)
    for (uint64_t i = 0; i < shape.count; ++i)
      if (has[rank][i / shape.block_size]) values[i] += value_at(rank, i);
  return encoded(values);
}

// Two versions of each slot's window, of sums and of packed blocks.
size_t SumPlan::most_accumulators() const {
  return size_t(shape.slots) * 2 * shape.window * (shape.sum_bytes() + shape.made_bytes());
}

std::string Plan::words() const {
  std::ostringstream text;
  text << ranks << " ranks";
  for (size_t level = 0; level < fans.size(); ++level)
    text << (level ? " x " : ", levels ") << fans[level];
  for (const SumPlan& sum : sums)
    text << "; " << sum.shape.count << " elements of " << name_of(sum.shape.dtype) << ", blocks of "
         << sum.shape.block_size << ", windows of " << sum.shape.window << ", " << sum.shape.slots
         << " slots of " << sum.shape.aggregators << (sum.ordered ? ", ordered" : "")
         << (sum.in_place ? ", in place" : "") << (sum.shape.codec ? ", coded" : "")
         << (sum.shape.arithmetic ? ", " : "")
         << (sum.shape.arithmetic ? name_of(sum.shape.arithmetic.kind) : "");
  text << words_of(faults);
  if (rare > 0) text << "; rare paths";
  return text.str();
}

std::string words_of(const Faults& faults) {
  std::ostringstream text;
  text << "; " << 100 * faults.lost << "% lost, " << 100 * faults.twice << "% twice, "
       << 100 * faults.late << "% late by up to " << faults.late_us << " us"
       << (faults.in_order ? ", in order" : "") << (faults.partly > 0 ? ", sent in parts" : "");
  for (const Faults::Cut& cut : faults.cuts)
    text << "; cut from " << cut.from_us << (cut.to_us == kNever ? " us on" : " to ")
         << (cut.to_us == kNever ? "" : std::to_string(cut.to_us) + " us");
  for (const auto& crash : faults.crashes)
    text << "; host " << crash.host << " stops at " << crash.at_us << " us";
  for (const auto& jump : faults.jumps)
    text << "; host " << jump.host << "'s clock is put forward by " << jump.by_us << " us";
  for (const auto& pause : faults.pauses)
    text << "; host " << pause.host << " waits for " << pause.by_us << " us at " << pause.at_us
         << " us";
  return text.str();
}

Plan make_plan(Dice& dice) {
  Plan plan;
  plan.ranks = uint32_t(dice.one_of<uint64_t>({1, 2, 3, 4, 5, 8, 9, 13}));
  plan.fans = {plan.ranks};
  if (plan.ranks > 2 && dice.chance(0.5))
    plan.fans = Tree::fans_for(plan.ranks, uint32_t(dice.between(2, 5)));
  for (uint64_t sums = dice.between(1, 3); sums > 0; --sums)
    plan.sums.push_back(sum_of(dice, plan.ranks, uint32_t(dice.between(1, plan.ranks))));
  plan.faults = network_faults(dice, plan.ranks, &plan.hopeless);
  if (dice.chance(0.1)) {
    plan.faults.crashes.push_back({uint32_t(dice.below(plan.ranks)), time_of(dice), 0});
    plan.hopeless = true;
  }
  plan.rare = dice.one_of<double>({0, 0.05, 0.5});
  // Aggregators with a parent forward results without asking whether the one before has arrived.
  plan.faults.in_order = plan.fans.size() > 1 || dice.chance(0.5);
  return plan;
}

}  // namespace omnihvd::simulation
