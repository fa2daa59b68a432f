#include "simulator/csrc/bad_session_plan.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "numeric/block_ops.h"
#include "protocol/seats.h"

namespace omnihvd::simulation {
namespace {

constexpr uint64_t kElements = 1 << 13, kManyElements = 1 << 15;  // of all ranks, about
constexpr uint64_t kSecond = 1'000'000;
constexpr uint64_t kShort = kSecond;  // a sum survives this

std::string levels_of(Prng& prng, const SessionPlan& plan, uint32_t ranks) {
  if (ranks < 3 || prng.chance(plan.long_sums ? 0.25 : 0.5)) return "auto";
  std::string text;
  for (const uint32_t fan : Tree::fans_for(ranks, uint32_t(prng.between(2, 5))))
    text += (text.empty() ? "" : "x") + std::to_string(fan);
  return text;
}

Settings settings_of(Prng& prng, const SessionPlan& plan, uint32_t ranks) {
  Settings settings;
  settings.block_size = prng.one_of<uint32_t>({8, 16, 33});
  settings.message_bytes = prng.one_of<uint32_t>({64, 256, 1024, 57344});
  if (plan.long_sums && prng.chance(0.3)) settings.message_bytes = 64;
  settings.slots = uint32_t(prng.between(1, 4));
  settings.streams = 1;
  settings.scan_ahead = prng.one_of<uint32_t>({1, 5, 64, 2048});
  settings.deterministic = prng.chance(0.3);
  settings.levels = levels_of(prng, plan, ranks);
  if (prng.chance(0.3)) settings.arithmetic = ArithmeticKind(prng.between(0, 4));
  settings.stall_warning_s = 0;  // warnings are for people
  if (plan.dedicated > 0 || prng.chance(0.5)) settings.secret = "a secret of sixteen";
  return settings;
}

Codec codec_of(Prng& prng, DType dtype) {
  if (!prng.chance(0.3)) return {};
  Codec codec;
  codec.kind = CodecKind(prng.between(1, 7));
  if (codec.kind == CodecKind::qsgd) codec.bits = prng.one_of<uint8_t>({2, 4, 8});
  if (codec.kind == CodecKind::integer) codec.bits = prng.one_of<uint8_t>({4, 8});
  if (codec.lossy()) codec.seed = uint32_t(prng.below(1000));
  return is_valid(codec) && codec.takes(dtype) ? codec : Codec();
}

SumPlan sum_of(Prng& prng, const SessionPlan& plan, uint32_t block_size) {
  SumPlan sum;
  sum.shape.dtype =
      prng.one_of<DType>({DType::f32, DType::f32, DType::f64, DType::i32, DType::i64, DType::f16});
  sum.shape.block_size = block_size;
  sum.shape.codec = codec_of(prng, sum.shape.dtype);
  const uint64_t border = block_size * prng.between(1, 8);
  sum.shape.count = prng.one_of<uint64_t>(
      {0, 1, border - 1, border, border + 1, prng.below(kElements / plan.machines)});
  if (plan.long_sums && prng.chance(0.5))
    sum.shape.count = prng.below(kManyElements / plan.machines);
  sum.in_place = prng.chance(0.5);
  const double density = prng.one_of<double>({0, 0.02, 0.2, 0.7, 1});
  const uint64_t slowest = prng.one_of<uint64_t>({1, 200, 20'000});
  for (uint32_t machine = 0; machine < plan.machines; ++machine) {
    sum.begins_us.push_back(prng.below(slowest));
    std::vector<bool>& blocks = sum.has.emplace_back(sum.shape.blocks());
    for (size_t block = 0; block < blocks.size(); ++block) blocks[block] = prng.chance(density);
  }
  return sum;
}

GroupPlan group_of(Prng& prng, const SessionPlan& plan) {
  GroupPlan group;
  for (uint32_t machine = 0; machine < plan.machines; ++machine)
    if (prng.chance(0.8)) group.machines.push_back(machine);
  if (group.machines.empty()) group.machines = {uint32_t(prng.below(plan.machines))};
  const auto ranks = uint32_t(group.machines.size());
  group.settings.assign(ranks, settings_of(prng, plan, ranks));
  if (ranks > 1 && prng.chance(0.05)) {
    Settings& last = group.settings.back();
    if (!last.secret.empty() && prng.chance(0.5) && plan.dedicated == 0)
      last.secret = "another one of sixteen";
    else
      last.arithmetic = last.arithmetic == ArithmeticKind::floats ? ArithmeticKind::integers
                                                                  : ArithmeticKind::floats;
    group.same = false;
  }
  for (uint64_t sums = prng.between(1, 5); sums > 0; --sums)
    group.sums.push_back(sum_of(prng, plan, group.settings[0].block_size));
  group.at_once = uint32_t(prng.between(1, 3));
  group.begins_us = prng.below(prng.one_of<uint64_t>({1, 2'000, 200'000}));
  return group;
}

uint64_t fault_time(Prng& prng) { return prng.below(prng.one_of<uint64_t>({300, 3'000, 100'000})); }

Faults network_faults(Prng& prng, uint32_t machines) {
  Faults faults;
  faults.machines = machines;
  faults.lost = prng.one_of<double>({0, 0.001, 0.05, 0.3});
  faults.twice = prng.one_of<double>({0, 0, 0.01, 0.3});
  faults.late = prng.one_of<double>({0, 0, 0.02, 0.5});
  faults.late_us = prng.one_of<uint64_t>({10, 300, 100'000});
  faults.partly = prng.one_of<double>({0, 0, 0.1});
  if (prng.chance(0.2)) {
    const uint64_t from = fault_time(prng);
    const bool heals = prng.chance(0.7);
    Faults::Cut cut{from, heals ? from + fault_time(prng) * 20 : SessionPlan::kNever,
                    std::vector<bool>(machines)};
    for (uint32_t machine = 0; machine < machines; ++machine) cut.half[machine] = prng.chance(0.5);
    faults.cuts.push_back(std::move(cut));
  }
  for (uint64_t jumps = prng.chance(0.2) ? prng.between(1, 3) : 0; jumps > 0; --jumps)
    faults.jumps.push_back({uint32_t(prng.below(machines)), fault_time(prng),
                            prng.one_of<uint64_t>({1'000, 1'000'000, 60'000'000})});
  return faults;
}

std::string words_of(const Faults& faults) {
  std::ostringstream text;
  text << "; " << 100 * faults.lost << "% lost, " << 100 * faults.twice << "% twice, "
       << 100 * faults.late << "% late by up to " << faults.late_us << " us"
       << (faults.partly > 0 ? ", sent in parts" : "");
  for (const Faults::Cut& cut : faults.cuts)
    text << "; cut from " << cut.from_us << (cut.to_us == SessionPlan::kNever ? " us on" : " to ")
         << (cut.to_us == SessionPlan::kNever ? "" : std::to_string(cut.to_us) + " us");
  for (const auto& jump : faults.jumps)
    text << "; machine " << jump.machine << "'s clock is put forward by " << jump.by_us << " us";
  for (const auto& pause : faults.pauses)
    text << "; machine " << pause.machine << " waits for " << pause.by_us << " us at "
         << pause.at_us << " us";
  return text.str();
}

uint64_t time_of(Prng& prng) { return prng.below(prng.one_of<uint64_t>({300, 5'000, 300'000})); }

SessionPlan::Crash crash_of(Prng& prng, uint32_t machines) {
  SessionPlan::Crash crash;
  crash.machine = uint32_t(prng.below(machines));
  crash.at_us = time_of(prng);
  crash.noticed_us = prng.one_of<uint64_t>({100, 100'000, 10 * kSecond, SessionPlan::kNever});
  crash.again_us = prng.chance(0.5) ? SessionPlan::kNever : prng.below(5 * kSecond);
  return crash;
}

}  // namespace

std::vector<uint8_t> SumPlan::total(const std::vector<uint32_t>& machines) const {
  std::vector<int64_t> values(shape.count);
  for (const uint32_t machine : machines)
    for (uint64_t i = 0; i < shape.count; ++i)
      if (has[machine][i / shape.block_size]) values[i] += int64_t((i * 31 + machine * 7) % 11) + 1;
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

bool SessionPlan::breaks() const {
  const auto is_long = [](const Faults::OfMachine& one) { return one.by_us > kShort; };
  return !crashes.empty() ||
         std::any_of(faults.cuts.begin(), faults.cuts.end(),
                     [](const Faults::Cut& cut) { return cut.to_us == kNever; }) ||
         std::any_of(faults.pauses.begin(), faults.pauses.end(), is_long);
}

// A process looks at its clock twice a second, but not while it is paused.
uint64_t SessionPlan::most_us(uint32_t levels) const {
  uint64_t us = timeout_us + (levels + 1) * kSecond + 2 * kSecond;
  for (const Faults::OfMachine& pause : faults.pauses) us += pause.by_us;
  return us;
}

SessionPlan make_session_plan(Prng& prng, bool long_sums) {
  SessionPlan plan;
  plan.long_sums = long_sums;
  plan.refers = long_sums ? 0.5 : 0;
  plan.machines = uint32_t(prng.one_of<uint64_t>({1, 2, 3, 4, 5, 7, 9}));
  plan.dedicated = prng.chance(0.25) ? uint32_t(prng.between(1, 2)) : 0;
  plan.timeout_us = prng.one_of<uint64_t>({60, 120}) * kSecond * (long_sums ? 20 : 1);
  for (uint64_t groups = prng.between(1, 3); groups > 0; --groups)
    plan.groups.push_back(group_of(prng, plan));
  plan.faults = network_faults(prng, plan.all());
  for (uint64_t pauses = prng.chance(0.2) ? prng.between(1, 3) : 0; pauses > 0; --pauses)
    plan.faults.pauses.push_back(
        {uint32_t(prng.below(plan.all())), time_of(prng),
         prng.one_of<uint64_t>({1'000, 300'000, 20 * kSecond, 150 * kSecond})});
  for (uint64_t crashes = prng.chance(long_sums ? 0.1 : 0.4) ? prng.between(1, 2) : 0; crashes > 0;
       --crashes)
    plan.crashes.push_back(crash_of(prng, plan.all()));
  if (!long_sums && prng.chance(0.3)) {
    plan.refusals = uint32_t(prng.between(1, 2));
    plan.refused = prng.one_of<double>({0.001, 0.01, 0.1});
  }
  plan.rare = prng.one_of<double>({0, 0.05, 0.5});
  if (std::min(plan.faults.lost, plan.faults.late) > 0.1) plan.timeout_us *= 4;
  for (GroupPlan& group : plan.groups)
    for (Settings& settings : group.settings) settings.timeout_s = double(plan.timeout_us) * 1e-6;
  return plan;
}

std::string SessionPlan::words() const {
  std::ostringstream text;
  text << machines << " ranks";
  if (dedicated) text << " and " << dedicated << " dedicated aggregators";
  for (const GroupPlan& group : groups) {
    const Settings& settings = group.settings[0];
    text << "; a group of " << group.machines.size() << ", levels " << settings.levels
         << ", blocks of " << settings.block_size << ", messages of " << settings.message_bytes
         << ", " << settings.slots << " slots" << (settings.deterministic ? ", ordered" : "")
         << (group.same ? "" : ", settings that differ") << ", " << group.at_once << " at once of";
    for (const SumPlan& sum : group.sums)
      text << " " << sum_text(sum.shape.count, sum.shape.dtype, sum.shape.codec)
           << (&sum == &group.sums.back() ? "" : ",");
    if (settings.arithmetic != ArithmeticKind::floats)
      text << " in " << name_of(settings.arithmetic);
  }
  text << words_of(faults);
  for (const Crash& crash : crashes)
    text << "; machine " << crash.machine << " ends at " << crash.at_us << " us"
         << (crash.noticed_us == kNever ? ", unnoticed" : "")
         << (crash.again_us == kNever ? "" : ", and starts again");
  if (refusals) text << "; memory is refused " << refusals << " times";
  if (rare > 0) text << "; rare paths";
  return text.str();
}

}  // namespace omnihvd::simulation
