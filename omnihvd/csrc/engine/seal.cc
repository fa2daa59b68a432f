#include "engine/seal.h"

#include <cstring>

#include "base/bytes.h"
#include "base/sha256.h"

namespace omnihvd {

static_assert(kTagBytes == AesGcm::kTagBytes);

Seal::Seal(const GroupInfo& info, uint32_t stream, uint32_t from, uint32_t to,
           Protection protection) {
  BytesWriter statement;
  statement.text("messages");
  statement.u64(info.id);
  statement.u64(uint64_t(protection));
  statement.u64(stream);
  statement.u64(from);
  statement.u64(to);
  const Digest digest = hmac_sha256(info.key, statement.bytes());
  if (protection == Protection::token)
    std::memcpy(token_.data(), digest.data(), token_.size());
  else
    gcm_ = std::make_unique<AesGcm>(to_string(digest).substr(0, AesGcm::kKeyBytes));
}

// If the tag cannot be made because the process ends, it stays zero, and no receiver accepts it.
const std::vector<Slice>& Seal::close(Message& message, std::vector<uint8_t>* cipher) {
  const uint64_t number = next_++;
  uint8_t* tag = message.finish(number);
  const std::vector<Slice>& whole = message.slices();
  if (!gcm_) {
    std::memcpy(tag, token_.data(), token_.size());
    return whole;
  }
  const uint8_t* head = static_cast<const uint8_t*>(whole[0].data);
  slices_ = whole;
  slices_[0] = {head + kHeaderBytes, whole[0].size - kHeaderBytes};
  cipher->resize(message.size() - kHeaderBytes);
  if (!gcm_->encrypt(number, {head, kTagAt}, slices_, cipher->data(), tag))
    std::memset(cipher->data(), 0, cipher->size());
  slices_ = {{head, kHeaderBytes}, {cipher->data(), cipher->size()}};
  return slices_;
}

const uint8_t* Seal::open(const Header& header, const uint8_t* data, size_t size,
                          std::vector<uint8_t>* plain) {
  if (header.number < next_ || header.bytes != uint32_t(size)) return nullptr;
  const uint8_t* tag = data + kTagAt;
  const uint8_t* opened = data;
  if (gcm_) {
    plain->resize(size);
    opened = plain->data();
    std::memcpy(plain->data(), data, kHeaderBytes);
    const Slice head{data, kTagAt}, content{data + kHeaderBytes, size - kHeaderBytes};
    if (!gcm_->decrypt(header.number, head, content, plain->data() + kHeaderBytes, tag))
      return nullptr;
  } else if (!equal_in_constant_time(token_.data(), tag, kTagBytes)) {
    return nullptr;
  }
  if (header.number > next_) {
    if (!gap_since_) gap_since_ = Clock::now();
    return nullptr;
  }
  ++next_;
  gap_since_.reset();
  return opened;
}

}  // namespace omnihvd
