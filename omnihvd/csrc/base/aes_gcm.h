// AES-128-GCM from OpenSSL's libcrypto, loaded at run time: the build does not need OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/slice.h"

namespace omnihvd {

// Holds one key. One thread at a time. Never use a (key, number) for two different messages. A call
// returns false, with worthless output, only while the process is ending.
class AesGcm {
 public:
  static constexpr size_t kKeyBytes = 16;
  static constexpr size_t kTagBytes = 16;

  explicit AesGcm(const std::string& key);  // throws Error when there is no libcrypto
  ~AesGcm();
  AesGcm(const AesGcm&) = delete;
  AesGcm& operator=(const AesGcm&) = delete;

  // Writes the tag of `head` and the slices, and the encrypted slices, which keep their size.
  bool encrypt(uint64_t number, Slice head, const std::vector<Slice>& slices, uint8_t* out,
               uint8_t* tag);
  // The reverse. Also returns false if the tag does not match `head` and `in`.
  bool decrypt(uint64_t number, Slice head, Slice in, uint8_t* out, const uint8_t* tag);

 private:
  void* context_ = nullptr;  // EVP_CIPHER_CTX
};

}  // namespace omnihvd
