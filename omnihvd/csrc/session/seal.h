// How the messages of one direction of a pair prove that they are what the sender has sent, each
// once. Both sides have a Seal, made from the group's key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/aes_gcm.h"
#include "base/slice.h"
#include "protocol/wire.h"
#include "session/collective.h"
#include "session/group_info.h"

namespace omnihvd {

enum class Protection {
  token,      // a secret that is the same in all messages: against who cannot read them
  encrypted,  // a code over all of the message, whose content nobody else reads
};

// Engine thread only.
class Seal {
 public:
  // Throws Error when there is no libcrypto, and it is needed.
  Seal(const GroupInfo& info, uint32_t stream, uint32_t from, uint32_t to, Protection protection);

  // The sender's: numbers the message and writes its tag. What is to be sent; valid until the
  // message or `cipher`, which the caller keeps with it, changes.
  const std::vector<Slice>& close(Message& message, std::vector<uint8_t>* cipher);

  // The receiver's: the next message, if it is authentic, in the clear: `data` itself, or what is
  // now in `*plain`. Null when it is not, has been there before, or comes before its time.
  const uint8_t* open(const Header& header, const uint8_t* data, size_t size,
                      std::vector<uint8_t>* plain);
  // The next message has not come, though later ones have, since then.
  std::optional<Clock::time_point> gap_since() const { return gap_since_; }
  // This process was stopped until now, and could not take it.
  void leave_out(Clock::time_point now) {
    if (gap_since_) gap_since_ = now;
  }

 private:
  const Protection protection_;
  std::array<uint8_t, kTagBytes> token_{};
  std::unique_ptr<AesGcm> gcm_;
  uint64_t next_ = 0;  // the number of the next message
  std::optional<Clock::time_point> gap_since_;
  std::vector<Slice> slices_;
};

}  // namespace omnihvd
