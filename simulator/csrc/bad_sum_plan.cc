#include "simulator/csrc/bad_sum_plan.h"

#include <cstring>

#include "numeric/block_ops.h"

namespace omnihvd::simulation {
namespace {

int64_t value_at(uint32_t machine, uint64_t index) {
  return int64_t((index * 31 + machine * 7) % 11) + 1;
}

}  // namespace

void SumPlan::deal(Dice& dice, uint32_t machines) {
  in_place = dice.chance(0.5);
  const double density = dice.one_of<double>({0, 0.02, 0.2, 0.7, 1});
  const uint64_t slowest = dice.one_of<uint64_t>({1, 200, 20'000});
  for (uint32_t machine = 0; machine < machines; ++machine) {
    begins_us.push_back(dice.below(slowest));
    std::vector<bool>& blocks = has.emplace_back(shape.blocks());
    for (size_t block = 0; block < blocks.size(); ++block) blocks[block] = dice.chance(density);
  }
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

std::vector<uint8_t> SumPlan::input(uint32_t machine) const {
  std::vector<int64_t> values(shape.count);
  for (uint64_t i = 0; i < shape.count; ++i)
    if (has[machine][i / shape.block_size]) values[i] = value_at(machine, i);
  return encoded(values);
}

std::vector<uint8_t> SumPlan::expected(const std::vector<uint32_t>& machines) const {
  std::vector<int64_t> values(shape.count);
  for (const uint32_t machine : machines)
    for (uint64_t i = 0; i < shape.count; ++i)
      if (has[machine][i / shape.block_size]) values[i] += value_at(machine, i);
  return encoded(values);
}

}  // namespace omnihvd::simulation
