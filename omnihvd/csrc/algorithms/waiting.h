// How a rank reports the ranks for which it waits, in a sum in its caller's thread.
#pragma once

#include <optional>
#include <sstream>
#include <string>

#include "base/awake_clock.h"
#include "base/log.h"
#include "engine/settings.h"

namespace omnihvd {

// The error if two ranks make different sums in one call.
inline std::string differ_text(const std::string& rank, const std::string& sum,
                               const std::string& other, const std::string& its_sum) {
  return "the ranks disagree about an allreduce: " + rank + " sums " + sum + ", " + other +
         " sums " + its_sum;
}

// One thread at a time.
class SumTimer {
 public:
  explicit SumTimer(const Settings& settings)
      : warning_s_(settings.stall_warning_s), timeout_s_(settings.timeout_s) {}
  void set_timeout(double seconds) { timeout_s_ = seconds; }

  // OMNIHVD_TIMEOUT counts from the sum's first wait, OMNIHVD_STALL_WARNING from each wait.
  void begin_sum() { sum_.reset(); }
  void begin_wait() {
    if (!sum_) sum_.emplace();
    begun_ = sum_->seconds();
    warned_ = false;
  }
  // To be asked at least once a second. Returns the error if the sum of these elements takes longer
  // than its time-out; else empty. Warns once in a wait. late: the ranks that have not come.
  std::string overdue(const std::string& elements, const std::string& late) {
    const double seconds = sum_->seconds();
    std::ostringstream what;
    what << "an allreduce of " << elements;
    if (timeout_s_ > 0 && seconds > timeout_s_) {
      what << " did not end within " << timeout_s_ << " s (OMNIHVD_TIMEOUT); waiting for " << late;
      return what.str();
    }
    if (warned_ || warning_s_ <= 0 || seconds - begun_ < warning_s_) return "";
    warned_ = true;
    log(LogLevel::warning, what.str(), " has made no progress for ", warning_s_, " s; waiting for ",
        late);
    return "";
  }

 private:
  const double warning_s_;
  double timeout_s_;
  std::optional<AwakeTimer> sum_;  // since its first wait
  double begun_ = 0;               // when this wait began
  bool warned_ = false;
};

}  // namespace omnihvd
