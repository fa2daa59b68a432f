// Authenticates the messages in one direction between a pair: each is what the sender sent, and
// arrives once. Both sides have a Seal, made from the group's key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/aes_gcm.h"
#include "base/slice.h"
#include "engine/collective.h"
#include "engine/group_info.h"
#include "protocol/wire.h"

namespace omnihvd {

enum class Protection {
  token,      // a secret, the same in all messages: protects against those who cannot read them
  encrypted,  // the message is encrypted, and a code covers all of it
};

// Progress thread only.
class Seal {
 public:
  // Throws Error if it needs libcrypto and there is none.
  Seal(const GroupInfo& info, uint32_t stream, uint32_t from, uint32_t to, Protection protection);

  // The sender's: numbers the message and writes its tag. Returns the bytes to send, valid until
  // the message changes, or `cipher`, which the caller keeps with it.
  const std::vector<Slice>& close(Message& message, std::vector<uint8_t>* cipher);

  // The receiver's: returns the plaintext of the next message if that is authentic: `data` itself,
  // or the content of `*plain`. Null if it is not, is a repeat, or comes out of order.
  const uint8_t* open(const Header& header, const uint8_t* data, size_t size,
                      std::vector<uint8_t>* plain);
  // Since when the next message has been missing though later ones have arrived.
  std::optional<Clock::time_point> gap_since() const { return gap_since_; }
  // This process was stopped until now, and could not receive it.
  void leave_out(Clock::time_point now) {
    if (gap_since_) gap_since_ = now;
  }

 private:
  std::array<uint8_t, kTagBytes> token_{};
  std::unique_ptr<AesGcm> gcm_;  // null: the token protects the messages
  uint64_t next_ = 0;            // the number of the next message
  std::optional<Clock::time_point> gap_since_;
  std::vector<Slice> slices_;
};

}  // namespace omnihvd
