// AES-128-GCM of OpenSSL's libcrypto, which is found at run time: nothing of it is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/slice.h"

namespace omnihvd {

// One key. One thread at a time. A (key, number) must never be used for two different messages.
// Each call is false, and its output worthless, only while the process is already ending.
class AesGcm {
 public:
  static constexpr size_t kKeyBytes = 16;
  static constexpr size_t kTagBytes = 16;

  explicit AesGcm(const std::string& key);  // throws Error when there is no libcrypto
  ~AesGcm();
  AesGcm(const AesGcm&) = delete;
  AesGcm& operator=(const AesGcm&) = delete;

  // The tag of `head` and the slices, and the slices encrypted, in as many bytes as they have.
  bool encrypt(uint64_t number, Slice head, const std::vector<Slice>& slices, uint8_t* out,
               uint8_t* tag);
  // The reverse. Also false when the tag is not that of `head` and `in`.
  bool decrypt(uint64_t number, Slice head, Slice in, uint8_t* out, const uint8_t* tag);

 private:
  void* context_ = nullptr;  // EVP_CIPHER_CTX
};

}  // namespace omnihvd
