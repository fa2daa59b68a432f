#include "innetwork/udp/datagram_peer.h"

#include <algorithm>

#include "base/time_limits.h"

namespace omnihvd {
namespace {

constexpr uint64_t kMillisecond = 1000, kSecond = 1'000'000;
constexpr uint64_t kProbeEvery = kSecond;
constexpr uint64_t kProbeRefused = 60 * kMillisecond;
constexpr uint64_t kSilence = kUdpSilence.microseconds();  // before a silent peer is given up
constexpr uint64_t kOpening = kUdpFirst.microseconds();    // the same, before its first answer
constexpr uint64_t kFirstOpen = 100 * kMillisecond;
constexpr uint64_t kOpenAgain = 3 * kSecond;  // of silence
constexpr uint64_t kAnswers = 2 * kSecond;    // since its last word, at most, of a peer that runs
constexpr uint32_t kMostTimeOuts = 30;        // some 27 s
constexpr uint64_t kAfterStop = 5 * kSecond;  // at least, to answer a new question

}  // namespace

void DatagramPeer::opened(uint64_t now) {
  is_open_ = true;
  say_at_ = now + kProbeEvery;
}

void DatagramPeer::heard(uint64_t now) {
  heard_at_ = now;
  refusals_.clear();
}

void DatagramPeer::refused(uint64_t now) {
  refusals_.add(now);
  say_at_ = std::min(say_at_, now + kProbeRefused);
}

void DatagramPeer::stopped(uint64_t now) {
  heard_at_ = std::max(heard_at_ + kSilence, now + kAfterStop) - kSilence;
  begun_at_ = std::max(begun_at_ + kOpening, now + kAfterStop) - kOpening;
  say_at_ = now;
}

DatagramPeer::End DatagramPeer::end(uint64_t now, bool lives, uint32_t time_outs) {
  excused_ = now < heard_at_ + kAnswers ? std::min(excused_, time_outs) : time_outs;
  if (refusals_.enough(now)) return End::refused;
  if (time_outs > excused_ + kMostTimeOuts) return End::swallowed;
  if (lives) return End::none;
  if (!is_open_ && now >= begun_at_ + kOpening) return End::never_answered;
  return now >= heard_at_ + kSilence ? End::silent : End::none;
}

DatagramPeer::Say DatagramPeer::say(uint64_t now) {
  if (now < say_at_) return Say::nothing;
  const uint64_t later =
      is_open_ ? kProbeEvery : std::min(kFirstOpen << std::min(tries_++, 4u), kSecond);
  say_at_ = now + (refusals_.any() ? kProbeRefused : later);
  if (!is_open_) return Say::open;
  return now >= heard_at_ + kOpenAgain ? Say::both : Say::probe;
}

}  // namespace omnihvd
